"""G(y) and the mean excess, law by law."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.fig9 import Fig9
from joma.experiments.joma_paper.fig9.laws import number_of

CAPTION = "Left: G(y). Right: H(rho). Dotted, in a law's colour: a critical point of it, where it has one."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Fig9, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""

    figure: Figure
    figure, axes = panels(1, 2, width=5.2, height=4.0)
    left, right = axes[0]
    curve, pairs = tables["curve"], tables["pairs"]
    for k, (name, one) in enumerate(curve.groupby("run", sort=False)):
        product = number_of(tables, str(name), "theta_2(0) p(0)")
        style = {"color": PALETTE[k % len(PALETTE)], "ls": "-" if k < len(PALETTE) else "--"}
        g, h = (one[one["metric"] == metric] for metric in ("G", "H"))
        left.plot(g["y"], g["value"], label=f"{_symbols(name)} ({product:.3f})", **style)
        right.plot(h["rho"], h["value"], **style)
        visible = pairs[(pairs["run"] == name) & (pairs["rho_plus"] < h["rho"].max())]
        if visible.empty:
            continue
        # The pair farthest from the line that only touches, as far as the right panel reaches.
        inside = visible[(visible["rho_plus"] < 2.0) & (visible["rho_minus"] > -3.0)]
        pair = (inside if len(inside) else visible).sort_values("rho_minus").iloc[0]
        met = np.array([pair["rho_minus"], pair["rho_plus"]])
        level = float(np.interp(met[0], h["rho"], h["value"]))
        y = np.interp(met, h["rho"], h["y"])
        dotted = {"color": style["color"], "ls": ":", "lw": 1.6}
        left.plot([0, 1], [0, level], **dotted)
        left.plot(y, level * y, "o", color=style["color"], mec=ink(), ms=6, zorder=5)
        right.plot(met, [level, level], "o", color=style["color"], mec=ink(), ms=6, zorder=5)
        right.axhline(level, **dotted)
    if len(pairs):
        label = "a critical point: dotted line meets the\ncurve of its own colour twice"
        left.plot([], [], "o:", color=ink(), ms=6, label=label)
    left.set(xlabel="y = θ₁(ρ)", ylabel="G(y) = F(θ₁⁻¹(y))", xlim=(0, 1), ylim=(0, 3.2))
    left.set_title("for a critical point, a line through 0 must meet G twice")
    left.legend(title="law, θ₂(0)·pₙ(0) (Eq. 58 asks ≥ 1/4)", loc="upper left", title_fontsize=8.5)
    first, last = curve["y"].min(), curve["y"].max()
    right.set(xlabel=f"signed distance ρ (each curve drawn for {first:.4f} ≤ y ≤ {last:.4f})")
    right.set(ylabel="mean excess H = F/θ₁ = G/y", xlim=(-3, 2), ylim=(0, 3.2))
    right.set_title("for a critical point, H must take one value twice")
    return figure


def _symbols(name: Hashable) -> str:
    """A law's name with the Greek letter that the axes have too."""
    return str(name).replace("nu =", "ν =")

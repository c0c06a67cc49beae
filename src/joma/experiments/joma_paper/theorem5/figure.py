"""Co-occurrence against height, and the error of Eq. 8, printed and completed."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.theorem5 import Theorem5

CAPTION = "Left: co-occurrence against H. Right: the error of Eq. 8, printed and completed."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Theorem5, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 2, width=4.9, height=3.9)
    left, right = axes[0]
    deep = tables["cooccurrence"]
    for colour, (rho, of_rho) in zip(PALETTE, deep.groupby("edge_correlation", sort=False), strict=False):
        by = {route: rows.set_index("ancestor_height") for route, rows in of_rho.groupby("metric")}
        left.plot(by["formula"]["value"], color=colour, label=f"ρ = {rho:g}")
        left.plot(by["printed formula"]["value"], "--", lw=1.1, color=colour)
        drawn = by["sampled"]
        left.errorbar(
            drawn.index, drawn["value"], yerr=2 * drawn["standard_error"], fmt="o", ms=4.5, color=colour
        )
        left.axhline(by["marginal"]["value"].iloc[0], color=colour, lw=0.8, ls=":")
    left.plot([], [], "o", color=ink(), ms=4.5, label="sampled")
    left.plot([], [], "-", color=ink(), label="corrected ρ₀")
    left.plot([], [], "--", color=ink(), lw=1.1, label="printed ρ₀")
    left.plot([], [], ":", color=ink(), lw=0.8, label="P[yₗ = 1], unrelated")
    left.set(xlabel=f"H, height of the common ancestor (L = {settings.depth} edges in all)")
    left.set(ylabel="P[yₗ = 1 | yₘ = 1]", title="Co-occurrence falls with the ancestor's height")
    left.set_xticks(range(1, settings.depth))
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    shown = tables["expansion"]
    names = {"printed": "1 − H/L, as printed", "completed": "with + ε H(2H − L)/(2L)"}
    for colour, (which, label) in zip(PALETTE, names.items(), strict=False):
        for height, curve in shown[shown["metric"] == which].groupby("ancestor_height"):
            right.plot(
                curve["eps"],
                curve["value"].abs(),
                "o-",
                ms=3.5,
                lw=1.2,
                color=colour,
                alpha=0.75,
                label=label if height == 1 else None,
            )
    eps = sorted(settings.expansion)
    right.plot(eps, [e / 4 for e in eps], ":", color=ink(), label="slopes 1 and 2")
    right.plot(eps, [e**2 / 4 for e in eps], ":", color=ink())
    right.set(xscale="log", yscale="log", xlabel="ε = 1 − ρ = 1 − ρ₀")
    right.set(ylabel="|error| of P", title=f"Eq. 8: its remainder is O(ε), L = {settings.depth}")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return figure

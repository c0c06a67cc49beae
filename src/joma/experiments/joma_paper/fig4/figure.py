"""The courses of v and their entropies, for both dynamics."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.fig4 import ACTING, DYNAMICS, Fig4
from joma.experiments.joma_paper.fig4 import CAPTION as CAPTION_TEMPERATURE
from joma.experiments.joma_paper.fig4.claims import extremes_of

CAPTION = "Left: courses of v, coloured by mu. Right: entropies, with dip and end marked, and the null."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Fig4, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(2, 2, width=5.2, height=3.5)
    figure.set_layout_engine("constrained", wspace=0.06)
    mu = tables["components"]["value"]
    shades = mpl.colormaps["viridis"](np.linspace(0.2, 0.93, 256))  # seen on light and on dark paper
    colours = mpl.cm.ScalarMappable(
        mpl.colors.Normalize(mu.min(), mu.max()), mpl.colors.ListedColormap(shades)
    )
    for (left, right), dynamics in zip(axes, DYNAMICS, strict=True):
        courses = tables["weights"].query("run == @dynamics")
        for _, one in courses.groupby("component"):
            left.plot(one["step"], one["value"], color=colours.to_rgba(one["mu"].iloc[0]))
        left.set(ylabel=f"weight {'w' if dynamics == 'script' else 'v'}", title=_formula(settings, dynamics))
        _draw_entropies(right, tables, dynamics, settings.temperature)
        for axis in (left, right):
            if dynamics == "script":
                axis.set_xlabel("iteration")
            else:
                axis.set(xscale="log", xlabel="time (unit: 1/learning rate)")
                axis.set_xlim(left=0.01 * courses["step"].max())
        figure.colorbar(colours, ax=left, label="critical point μ", pad=0.02)
    return figure


def _formula(settings: Fig4, dynamics: str) -> str:
    if dynamics == "script":
        return (
            f"authors' script: w += {settings.learning_rate:g} (μ − w) softmax(w²/{settings.temperature:g})"
        )
    return "Eq. 6: v′ = (μ − v) exp(v²/2)"


def _draw_entropies(
    axis: Axes, tables: Mapping[str, pd.DataFrame], dynamics: str, temperature: float
) -> None:
    exponents = [(temperature, f"softmax(w²/{temperature:g}), as plotted by the script")]
    if dynamics == "equation 6":
        exponents = [
            (ACTING, "softmax(v²/2), the attention of Eq. 6"),
            (CAPTION_TEMPERATURE, "softmax(v²), the caption's"),
        ]
    curves = tables["entropy"].query("run == @dynamics")
    for colour, (exponent, label) in zip(PALETTE, exponents, strict=False):
        one = curves.query("variant == 'attention' and temperature == @exponent")
        axis.plot(one["step"], one["value"], color=colour, label=label)
        ends = extremes_of(tables, dynamics, "attention", exponent)
        axis.plot(ends["argmin"], ends["minimum"], "v", color=colour, ms=7, zorder=4)
        axis.plot(one["step"].iloc[-1], ends["end"], "^", color=colour, ms=7, clip_on=False)
    main = exponents[0][0]
    curves = curves[curves["temperature"] == main]
    for variant, dashes, label in (
        ("no attention", ":", "no attention"),
        ("equal mu", "--", "all μ equal"),
    ):
        one = curves[curves["variant"] == variant]
        axis.plot(one["step"], one["value"], dashes, color=ink(), lw=1.1, alpha=0.75, label=label)
    ends = extremes_of(tables, dynamics, "attention", main)
    for marker, label in (("v", "minimum"), ("^", "end")):
        axis.plot([], [], marker, color=ink(), ms=7, label=label)
    axis.set(
        ylabel="attention entropy (nats)",
        title=f"dip to {ends['minimum']:.3f}, end at {ends['end']:.3f} nats",
    )
    top = ends["start"]
    axis.set_ylim(-0.06 * top, 1.98 * top)  # room for the legend
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= 1.02 * top])
    axis.legend(loc="upper left")

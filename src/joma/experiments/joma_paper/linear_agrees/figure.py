"""Where attention goes over time, how sparse it is, and how each token ends."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.linear_agrees import JOMA, KEYS, NORMALISED, PLAIN, LinearAgrees

CAPTION = "Where attention goes over time, how sparse it is, and how each token ends."
"""What the figure shows, for those who cannot see it."""


def draw(settings: LinearAgrees, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    last = tables["agreement"][KEYS].iloc[-1]
    curves, logits = (
        table[(table[KEYS] == last).all(axis=1)] for table in (tables["curves"], tables["logits"])
    )
    figure, axes = panels(1, 3, width=4.2, height=3.5)
    looks: dict[str, dict[str, str]] = {
        PLAIN: {"color": PALETTE[0], "label": "Y/Z, not normalised"},
        JOMA: {"color": ink(), "label": "JoMA's block, linear", "linestyle": "none", "marker": "."},
        NORMALISED: {"color": PALETTE[1], "label": "Scan&Snap (Y/Z, normalised)"},
    }
    for column, (metric, label, title) in enumerate(
        (
            ("common share", "share of attention", "The common token"),
            ("entropy of distinct tokens", "entropy (nats)", "Attention among the distinct tokens"),
        )
    ):
        for name, look in looks.items():
            line = curves[(curves["run"] == name) & (curves["metric"] == metric) & (curves["time"] > 0)]
            axes[0, column].semilogx(line["time"], line["value"], **look)
        axes[0, column].set(xlabel="time $t$ ($\\eta_Y$ = 1)", ylabel=label, title=title)
    axes[0, 0].set_ylim(0, 1.35)
    axes[0, 0].legend(loc="upper left")
    for name, look in looks.items():
        ends = logits[(logits["run"] == name) & (logits["kind"] == "distinct")]
        marker = {"marker": "o", "linestyle": "none", "markersize": 4, **look, "label": None}
        axes[0, 2].plot(ends["probability"], ends["value"], **marker)
        common = logits[(logits["run"] == name) & (logits["kind"] == "common")]["value"].iloc[0]
        style = ":" if name == JOMA else "--"
        axes[0, 2].axhline(common, color=look["color"], linewidth=1, linestyle=style)
    axes[0, 2].set(
        xlabel="probability $P(l\\,|\\,n)$ of a distinct token",
        ylabel="attention logit $z_l$ at the end",
        title="Fates (dashed: the common token)",
    )
    return figure

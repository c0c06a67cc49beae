"""Attention to the tokens of each height, and the entropies."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.joma_paper.fig5 import RUNS, Fig5

CAPTION = "Attention to the tokens of each height, run by run; last, the entropies."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Fig5, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(2, 3, width=4.1, height=3.0)
    flat = list(axes.ravel())
    for axis, (run, label) in zip(flat, RUNS.items(), strict=False):
        part = tables["curves"][tables["curves"]["run"] == run]
        for colour, (height, tokens) in zip(PALETTE, part.groupby("height"), strict=False):
            mean = tokens.groupby("time")["attention"].mean()
            axis.plot(mean, color=colour, label=f"H = {height}")
        axis.set(title=label, xlabel="time", ylabel="attention per token", ylim=(0, 1))
        axis.set_xscale("log")
    flat[1].legend(
        loc="upper left", title="edges up to the lowest\nancestor shared with m", title_fontsize=7.5
    )
    for colour, (run, curve) in zip(PALETTE, tables["entropy"].groupby("run", sort=False), strict=False):
        flat[5].plot(curve["time"], curve["value"], color=colour, label=RUNS[str(run)])
    flat[5].set(xscale="log", xlabel="time", ylabel="attention entropy (nats)", title="Does it bounce?")
    flat[5].set_ylim(0, 1.2 * tables["entropy"]["value"].max())
    flat[5].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=7.5)
    return figure

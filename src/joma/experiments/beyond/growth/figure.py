"""Largest score of every run, branch by branch, and the leads in ramps of W_Q and W_K."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.beyond.growth import Growth
from joma.experiments.beyond.growth.kinds import RAMP

CAPTION = (
    "Left: the largest score of each run by how it was continued; from 1 on growth is told. "
    "Right: the step of the alarm against that of the loss's onset in ramps of W_Q and W_K; above the line "
    "it came first."
)


def draw(settings: Growth, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    runs = tables["runs"]
    figure, axes = panels(1, 2, width=10, height=4)
    names = list(dict.fromkeys(runs["branch"]))
    left, right = axes[0]
    for number, (kind, own) in enumerate(runs.groupby("kind", sort=False)):
        colour = PALETTE[number % len(PALETTE)]
        heights = [names.index(branch) + 0.05 * (number % 8 - 4) for branch in own["branch"]]
        left.plot(own["score"].clip(lower=1e-2), heights, "o", ms=3, color=colour, label=kind)
        ramps = own[(own["branch"] == RAMP) & own["onset"].notna()]
        right.plot(ramps["alarm"], ramps["onset"], "o", ms=4, color=colour)
    left.axvline(1.0, color="0.5", ls="--")
    left.set(xscale="log", xlabel="largest score", yticks=range(len(names)), yticklabels=names)
    left.legend(fontsize="x-small", loc="best")
    right.axline((0, 0), slope=1, color="0.5", ls="--")
    right.set(xlabel="step of the alarm", ylabel="step of the loss's onset", title=RAMP)
    return figure

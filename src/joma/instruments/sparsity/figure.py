"""How many units each token keeps, and what other sets of the same size cost."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from joma.core.figures import PALETTE, panels
from joma.runs.job import Job

CAPTION = "Share of heads and neurons that each token keeps, sorted; loss rises of other sets as large."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Job, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 2, width=4.6, height=3.6)
    shares, rises = axes[0]
    for colour, (kind, part) in zip(PALETTE, tables["tokens"].groupby("kind"), strict=False):
        kept = (part["kept"] / part["of"]).sort_values()
        shares.plot([n / len(kept) for n in range(len(kept))], kept, color=colour, label=kind)
    shares.set(xlabel="share of the tokens", ylabel="share of the units kept", ylim=(0, 1.02))
    shares.legend()
    sets = tables["sets"]
    names = [f"{row.kind}, {row.choice}" for row in sets.itertuples()]
    rises.barh(names, sets["loss_rise"], color=PALETTE[0])
    rises.set(xlabel="rise of the mean loss (nats)")
    rises.xaxis.set_major_locator(MaxNLocator(4))
    return figure

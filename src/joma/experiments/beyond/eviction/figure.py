"""Regret of every policy, with intervals, at each budget."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.beyond.eviction import Eviction

CAPTION = "Mean regret of every policy beside the best set, with 95 % intervals over texts; grey: untrained."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Eviction, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, len(settings.budgets), width=4.6, height=4.2)
    table = tables["policies"]
    for axis, budget in zip(axes[0], settings.budgets, strict=True):
        here = table[table["budget"] == budget]
        order = list(here[here["network"] == "trained"]["policy"])
        for network, colour in (("untrained", "0.7"), ("trained", PALETTE[0])):
            part = here[here["network"] == network].set_index("policy").loc[order]
            sizes = [part["regret"] - part["low"], part["high"] - part["regret"]]
            axis.errorbar(part["regret"], range(len(order)), xerr=sizes, fmt="o", color=colour, label=network)
        axis.set_yticks(range(len(order)), order, fontsize=8)
        axis.set(title=f"{budget} of {settings.context} positions kept", xlabel="regret (nats per token)")
    axes[0][0].legend(fontsize=8)
    return figure

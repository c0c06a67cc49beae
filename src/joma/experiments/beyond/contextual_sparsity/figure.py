"""What sets of the same size cost, and how many units are kept."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.beyond.contextual_sparsity import ContextualSparsity

CAPTION = "Rise of the mean loss with four choices of as many heads or neurons; every seed a point."
"""What the figure shows, for those who cannot see it."""


def draw(settings: ContextualSparsity, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 2, width=4.6, height=3.4)
    for axis, (kind, part) in zip(axes[0], tables["sets"].groupby("kind"), strict=True):
        for colour, (network, own) in zip(PALETTE, part.groupby("network"), strict=False):
            axis.plot(own["loss_rise"], own["choice"], "o", color=colour, label=network)
        axis.axvline(settings.epsilon, ls=":", color="0.5")
        axis.set(title=kind, xlabel="rise of the mean loss (nats)")
    axes[0][0].legend(fontsize=8)
    return figure

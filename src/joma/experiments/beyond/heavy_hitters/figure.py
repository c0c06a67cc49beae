"""Hitters and their co-occurrence along training."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.beyond.heavy_hitters import HeavyHitters
from joma.measures.attention.received.hitters import even_share

CAPTION = "Share of keys that receive 90 % of the mass (dotted: uniform attention), and co-occurrence."
"""What the figure shows, for those who cannot see it."""


def draw(settings: HeavyHitters, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 2, width=4.6, height=3.4)
    curves = tables["curves"].groupby(["metric", "seed", "step"])["value"].mean()
    for _, own in curves["hitter_share"].groupby(level="seed"):
        axes[0][0].plot(own.index.get_level_values("step"), own, "o-", color=PALETTE[0])
    axes[0][0].axhline(even_share(settings.length), ls=":", color="0.5")
    axes[0][0].set(xlabel="step", ylabel="share of heavy hitters")
    for colour, metric in zip(PALETTE, ("cooccurrence", "shuffled_cooccurrence"), strict=False):
        mean = curves[metric].groupby(level="step").mean()
        axes[0][1].plot(mean, "o-", color=colour, label=metric.replace("_", " "))
    axes[0][1].set(xlabel="step", ylabel="partial rank correlation of the mass")
    axes[0][1].legend(fontsize=8)
    return figure

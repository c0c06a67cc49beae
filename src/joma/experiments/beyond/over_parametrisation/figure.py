"""Probability that every latent is found, over the number of neurons."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.beyond.over_parametrisation import OverParametrisation

CAPTION = "Trained and untrained blocks, and the coupon-collector's laws; lines are means, bands all seeds."
"""What the figure shows, for those who cannot see it."""


def draw(settings: OverParametrisation, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 1, width=6.0, height=4.0)
    axis = axes[0][0]
    names = {
        "trained": "trained",
        "untrained": "untrained: chance matches",
        "law": "coupon collector, basins of single neurons",
        "law, equal basins": "coupon collector, equal basins",
    }
    for colour, (run, label) in zip(PALETTE, names.items(), strict=False):
        curves = tables["coverage"].query("run == @run").groupby("neurons")["value"]
        axis.plot(curves.mean(), "o-" if "law" not in run else "--", color=colour, label=label)
        axis.fill_between(curves.min().index, curves.min(), curves.max(), color=colour, alpha=0.15, lw=0)
    axis.axvline(settings.latents, lw=0.9, ls=":", color=PALETTE[-1], label="as many neurons as latents")
    axis.set(xlabel="neurons K", ylabel="probability that every latent is found", ylim=(0, 1.02))
    axis.legend(fontsize=8)
    return figure

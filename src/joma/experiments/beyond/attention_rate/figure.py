"""Entropy along training at each ratio of rates, and dips and rebounds over it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.core.tables import rows
from joma.experiments.beyond.attention_rate import AttentionRate, all_name, attention_name

CAPTION = (
    "A row per depth: the top layer's entropy along training (means of the seeds); rebounds over the ratio."
)
"""What the figure shows, for those who cannot see it."""


def draw(settings: AttentionRate, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    curves, bounces = (rows(tables[name], metric="attention_entropy") for name in ("curves", "bounces"))
    depths = sorted(curves["depth"].unique())
    figure: Figure
    figure, axes = panels(len(depths), 2, width=4.6, height=3.2)
    control = all_name(settings.control)
    names = [attention_name(ratio) for ratio in settings.ratios]
    for row, depth in enumerate(depths):
        top = curves[(curves["depth"] == depth) & (curves["layer"] == depth - 1)]
        for place, name in enumerate([*names, control]):
            mean = rows(top, variant=name).groupby("step")["value"].mean()
            axes[row, 0].plot(mean, "--" if name == control else "-", color=PALETTE[place], label=name)
        own = bounces[(bounces["depth"] == depth) & (bounces["layer"] == depth - 1)]
        for ratio, name in zip(settings.ratios, names, strict=True):
            of_ratio = rows(own, variant=name)["rebound"]
            axes[row, 1].plot(
                [ratio] * len(of_ratio), of_ratio, "o", color=PALETTE[names.index(name)], alpha=0.8
            )
        others = rows(own, variant=control)["rebound"]
        axes[row, 1].plot([settings.control] * len(others), others, "x", color=ink(), label=control)
        axes[row, 1].set(
            xscale="log", xlabel="rate of W_Q and W_K / rate of the rest", ylabel="rebound (nats)"
        )
        axes[row, 1].set_xticks(settings.ratios, [f"{ratio:g}" for ratio in settings.ratios])
        axes[row, 1].set_xticks([], minor=True)
        axes[row, 0].set(
            xlabel="minibatch", ylabel="entropy (nats)", title=f"{depth} layer{'s' if depth > 1 else ''}"
        )
        axes[row, 1].set_ylim(bottom=0)
    axes[0, 0].legend(fontsize=8)
    axes[0, 1].legend(fontsize=8)
    return figure

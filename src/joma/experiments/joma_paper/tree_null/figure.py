"""Every statistic on both laws."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.core.tables import rows
from joma.experiments.joma_paper.tree_null import LAWS, TreeNull

CAPTION = "Each statistic of the claims about hierarchy, seed by seed: on the tree, and on the same pairs."
"""What the figure shows, for those who cannot see it."""


def draw(settings: TreeNull, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    table = tables["statistics"]
    metrics = list(table["metric"].unique())
    columns = 4
    figure: Figure
    figure, axes = panels(-(-len(metrics) // columns), columns, width=3.2, height=2.6)
    for place, metric in enumerate(metrics):
        axis = axes[place // columns][place % columns]
        for at, (name, colour) in enumerate(zip(LAWS, PALETTE, strict=False)):
            values = rows(table, metric=metric, run=name)["value"]
            axis.plot([at] * len(values), values, "o", color=colour, alpha=0.7)
            axis.hlines(values.mean(), at - 0.2, at + 0.2, color=colour)
        axis.set_xticks(range(len(LAWS)), LAWS, fontsize=8)
        axis.set_xlim(-0.5, len(LAWS) - 0.5)
        axis.set_title(metric, fontsize=8)
    for place in range(len(metrics), len(axes) * columns):
        axes[place // columns][place % columns].set_visible(False)
    return figure

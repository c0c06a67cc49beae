"""Each branch less its twin, step by step."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.core.tables import rows
from joma.instruments.branch import BranchSettings

CAPTION = "A panel per metric: each branch less its twin, mean and 95 % interval over the seeds."
"""What the figure shows, for those who cannot see it."""


def draw(settings: BranchSettings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    found = tables["differences"]
    metrics = list(dict.fromkeys(found["metric"]))
    figure: Figure
    figure, axes = panels(1, len(metrics))
    for axis, metric in zip(axes[0], metrics, strict=True):
        of_metric = rows(found, metric=metric)
        for number, (name, part) in enumerate(of_metric.groupby("branch", sort=False)):
            colour = PALETTE[number % len(PALETTE)]
            axis.plot(part["step"], part["value"], color=colour, label=str(name))
            axis.fill_between(part["step"], part["low"], part["high"], color=colour, alpha=0.2, lw=0)
        axis.axhline(0, color=ink(), lw=0.8)
        axis.set(xlabel="step", ylabel=f"{metric} less the twin's")
    axes[0, 0].legend()
    return figure

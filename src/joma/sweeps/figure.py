"""A sweep's figure: its experiment's own, or the mean curves over the grid."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.sweeps import SweepSettings
from joma.sweeps.summary import curves_of, summary

CAPTION = (
    "The experiment's own figure where the grid is its own; else a panel per measurement, with the mean"
    " over seeds along the steps and its 95 % interval, a colour per setting of the grid."
)
"""What the figure shows, for those who cannot see it."""

_MOST_PANELS = 12
_MOST_LINES = 10
_FEWEST = 3
"""Runs of which an interval is drawn: that of two is some ten times as wide as they are apart."""


def draw(settings: SweepSettings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    whole = settings.whole()
    if whole is not None:
        return whole.draw(tables)
    name = curves_of(tables)
    if not name:
        figure, axes = panels(1, 1, width=5.0, height=2.0)
        counts = tables["cells"]["status"].value_counts()
        axes[0, 0].barh(list(counts.index), counts.to_numpy(), color=PALETTE[0])
        axes[0, 0].set_title("cells")
        return figure
    means = summary(settings, tables, name)
    varied = [axis for axis in next(iter(settings.varied_settings().values())) if axis != "seed"]
    metrics = list(means["metric"].unique())[:_MOST_PANELS]
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    figure, axes = panels(rows, columns, width=3.9, height=2.8)
    for place, metric in enumerate(metrics):
        axis = axes[place // columns, place % columns]
        part = means[means["metric"] == metric]
        if "layer" in part and part["layer"].notna().any():
            part = part[part["layer"] == part["layer"].max()]
        groups = part.groupby(varied, sort=True) if varied else [((), part)]
        for number, (values, line) in enumerate(groups):
            if number == _MOST_LINES:
                break
            colour = PALETTE[number % len(PALETTE)]
            label = ", ".join(
                f"{n} {v:g}" if isinstance(v, float) else f"{n} {v}"
                for n, v in zip(varied, values, strict=True)
            )
            axis.plot(line["step"], line["mean"], color=colour, label=label)
            if line["runs"].min() >= _FEWEST:
                axis.fill_between(line["step"], line["low"], line["high"], color=colour, alpha=0.2, lw=0)
        axis.set_title(metric.replace("_", " "))
        axis.set_xlabel("step")
    if varied:
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3))
    for place in range(len(metrics), rows * columns):
        axes[place // columns, place % columns].set_visible(False)
    return figure

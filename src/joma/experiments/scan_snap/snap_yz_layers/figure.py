"""Loss against depth, and the YZ model's loss along training."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_yz_layers import SnapYzLayers

CAPTION = "Left: loss against depth, with the seeds; right: the YZ model's loss along training."
"""What the figure shows, for those who cannot see it."""


def draw(settings: SnapYzLayers, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    losses, curves = tables["losses"], tables["curves"]
    losses = losses[losses["chosen"]]
    figure, axes = panels(1, 2, width=4.9, height=4.0)
    left, right = axes[0]
    for colour, model in zip(PALETTE, losses["model"].unique(), strict=False):
        part = losses[losses["model"] == model]
        mean = part.groupby("depth")["loss"].mean()
        left.plot(mean.index, mean, "-o", ms=4, color=colour, label=model)
        left.plot(part["depth"], part["loss"], ".", ms=4, color=colour, alpha=0.5)
    styles = zip(tables["baselines"].itertuples(), ("--", ":"), strict=True)
    for baseline, line in styles:
        for axis in (left, right):
            axis.axhline(baseline.value, color=ink(), lw=0.9, ls=line)
        left.plot([], [], line, color=ink(), lw=0.9, label=baseline.model)
    left.set_xticks(sorted(losses["depth"].unique()))
    left.set_xlabel("layers")
    left.set_ylabel("held-out loss (nats a token)")
    left.set_title("best rate of each model and depth")
    shown = next(iter(losses["model"].unique()))
    chosen = losses.loc[losses["model"] == shown, "run"]
    of_model = curves[curves["run"].isin(chosen) & (curves["metric"] == "validation_loss")]
    for colour, (depth, part) in zip(PALETTE, of_model.groupby("depth"), strict=False):
        mean = part.groupby("step")["value"].mean()
        right.plot(mean.index, mean, color=colour, label=f"{depth} layer{'s' if depth > 1 else ''}")
    right.set_xlabel("step")
    right.set_title(f"{shown}: loss along training")
    right.legend(loc="upper right")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure

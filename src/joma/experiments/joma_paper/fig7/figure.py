"""Stable rank and attention entropy of each layer over the steps, and the dates of fall and return."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels, shade
from joma.experiments.joma_paper.fig7 import Fig7
from joma.measures.attention.statistics import ATTENTION_ENTROPY

CAPTION = "Each layer's curve, mean over the runs and each run behind it; right: dates of fall and return."
"""What the figure shows, for those who cannot see it."""

_PANELS = {
    ("stable_rank", "lower"): "stable rank, lower MLP",
    (ATTENTION_ENTROPY, "attention"): "attention entropy (nats)",
}


def draw(settings: Fig7, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    curves, dates = tables["curves"], tables["dates"]
    figure: Figure
    figure, axes = panels(1, 3, width=4.4, height=3.4)
    layers = sorted(curves["layer"].unique())
    colours = {layer: shade(number, len(layers)) for number, layer in enumerate(layers)}
    for place, ((metric, matrix), title) in zip(axes[0], _PANELS.items(), strict=False):
        rows = curves[(curves["metric"] == metric) & (curves["matrix"] == matrix)]
        for layer, one in rows.groupby("layer"):
            for _, own in one.groupby("run"):
                place.plot(own["step"], own["value"], color=colours[layer], lw=0.6, alpha=0.35)
            mean = one.groupby("step")["value"].mean()
            place.plot(mean.index, mean, color=colours[layer], label=f"layer {layer}")
        if rows.empty:
            place.set_axis_off()
            continue
        place.set(title=title, xlabel="step (log)", xscale="log")
        place.legend(fontsize=7, ncols=2)
    last = axes[0][2]
    own = dates[(dates["metric"] == "stable_rank") & (dates["matrix"] == "lower")]
    for number, (move, rows) in enumerate(own.groupby("move")):
        rows = rows[rows["step"].notna()]
        around = [rows["step"] - rows["step_from"], rows["step_to"] - rows["step"]]
        heights = rows["layer"] + 0.2 * number + 0.03 * (rows["run"].rank(method="dense") - 1)
        colour, label = PALETTE[number], f"half the {move}"
        last.errorbar(rows["step"], heights, xerr=around, fmt="o", ms=4, lw=0.7, color=colour, label=label)
    last.set(
        title="lower MLP: dates of each layer and run", xlabel="step (log)", ylabel="layer", xscale="log"
    )
    last.legend(fontsize=7)
    return figure

"""Associations in time, layer by layer, and how the layers are ordered."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.deep_hierarchy import FROZEN, SHUFFLED, TREE, WEAK, DeepHierarchy
from joma.experiments.joma_paper.deep_hierarchy.claims import COUSIN, SIBLING, half_times

CAPTION = (
    "Left, middle: associations by height in layers 1 and 2, dashed for the shuffled tree (mean over "
    "seeds). Right: cousins' half time over siblings' in layer 1, seed by seed."
)
"""What the figure shows, for those who cannot see it."""


def draw(settings: DeepHierarchy, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 3, width=4.4, height=3.7)
    table = tables["associations"]
    names = {0: "itself", SIBLING: "sibling", COUSIN: "cousins", settings.levels + 1: "other tree"}
    for layer, axis in zip((1, 2), axes[0], strict=False):
        shown = table[(table["task"] == "tokens") & (table["layer"] == layer)]
        for run, dashes in ((TREE, "-"), (SHUFFLED, "--")):
            for colour, (height, name) in zip(PALETTE, names.items(), strict=False):
                curve = shown[(shown["run"] == run) & (shown["height"] == height)]
                label = name if run == TREE else None
                mean = curve.groupby("time")["value"].mean()
                axis.plot(mean, dashes, color=colour, label=label, alpha=1.0 if run == TREE else 0.6)
        axis.set(xscale="log", xlabel="time, 1/η_w", ylabel="gain of Σ v²", title=f"Layer {layer}")
        axis.legend()
    right = axes[0][2]
    when = half_times(table).unstack(["layer", "height"])
    runs = [(task, run) for task in ("tokens", "classes") for run in (TREE, SHUFFLED, WEAK, FROZEN)]
    runs = [key for key in runs if key in when.index.droplevel("seed").unique()]
    for row, key in enumerate(runs):
        of_run = when.loc[key]
        for colour, layer in zip(PALETTE, (1, 2), strict=False):
            ratio = of_run[layer, COUSIN] / of_run[1, SIBLING]
            label = f"cousins in layer {layer}" if row == 0 else None
            right.plot(
                ratio, [row - 0.12 + 0.24 * (layer - 1)] * len(ratio), "o", ms=4, color=colour, label=label
            )
    right.axvline(1.0, color=ink(), lw=1)
    right.set_yticks(range(len(runs)), [", ".join(key) for key in runs], fontsize=8)
    right.invert_yaxis()
    right.set(xscale="log", xlabel="half time over siblings' in layer 1", title="Who comes first")
    ticks = (0.5, 1, 2, 4, 8)
    right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    right.set_xticks([], minor=True)
    right.legend(fontsize=8, loc="upper right")
    return figure

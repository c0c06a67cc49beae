"""Attention maps along training, and its entropy."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_fig7 import SnapFig7

CAPTION = "A row per depth: the maps at the pictured steps, then the entropy over training."
"""What the figure shows, for those who cannot see it."""


def draw(settings: SnapFig7, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    curves, maps = tables["curves"], tables["maps"]
    maps = maps[(maps["text"] == "real") & (maps["seed"] == maps["seed"].min())]
    depths = sorted(maps["depth"].unique())
    steps = sorted(maps["step"].unique())
    figure, axes = panels(
        len(depths), len(steps) + 1, width=2.5, height=2.6, width_ratios=[1.0] * len(steps) + [1.7]
    )
    for row, depth in enumerate(depths):
        of_depth = maps[maps["depth"] == depth]
        for column, step in enumerate(steps):
            axis = axes[row, column]
            grid = of_depth[of_depth["step"] == step].pivot(index="query", columns="key", values="value")
            image = axis.imshow(grid.to_numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
            axis.grid(False)
            axis.set_title(f"step {step}" if row == 0 else "")
            axis.set_xlabel("attended position" if row == len(depths) - 1 else "")
            axis.set_ylabel(f"{depth} layer{'s' if depth > 1 else ''}\nposition" if column == 0 else "")
            if column:
                axis.set_yticklabels([])
            if column == len(steps) - 1:
                figure.colorbar(image, ax=axis, label="attention", pad=0.03)
        axis = axes[row, -1]
        entropy = curves[(curves["depth"] == depth) & (curves["metric"] == "attention_entropy")]
        for layer in range(depth):
            of_layer = entropy[entropy["layer"] == layer]
            for text, style in (("real", "-"), ("shuffled", ":")):
                mean = of_layer[of_layer["text"] == text].groupby("step")["value"].mean()
                label = f"layer {layer}" if text == "real" else None
                axis.plot(mean.index, mean, style, color=PALETTE[layer % len(PALETTE)], label=label)
        axis.plot([], [], ":", color=ink(), label="shuffled text")
        uniform = curves.loc[curves["metric"] == "uniform_entropy", "value"].mean()
        axis.axhline(uniform, color=ink(), lw=0.8, ls="--", label="uniform attention")
        axis.set_ylim(0, 1.45 * uniform)
        axis.set_ylabel("attention entropy (nats)")
        axis.set_xlabel("step" if row == len(depths) - 1 else "")
        axis.set_title("mean over seeds" if row == 0 else "")
        axis.legend(loc="upper right", ncols=2, fontsize=7.5)
    return figure

"""The curves of Fig. 6."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels, square_root_steps
from joma.experiments.joma_paper.fig6 import Fig6
from joma.experiments.joma_paper.fig6.claims import SIGNIFICANT
from joma.experiments.shared.curves import REAL

CAPTION = "A row per depth: entropy, stable rank, held-out loss along training, with the dips marked."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Fig6, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    everything, bounces = tables["curves"], tables["bounces"]
    curves = everything[everything["variant"] == REAL]
    bounces = bounces[bounces["variant"] == REAL]
    depths = sorted(curves["depth"].unique())
    metrics = {
        "attention_entropy": "attention entropy (nats)",
        "stable_rank": "stable rank of lower MLP",
        "validation_loss": "held-out loss (nats)",
    }
    figure, axes = panels(len(depths), 3, width=3.9, height=2.9, sharex=True)
    for row, depth in enumerate(depths):
        for column, (metric, label) in enumerate(metrics.items()):
            axis = axes[row, column]
            part = curves[(curves["depth"] == depth) & (curves["metric"] == metric)]
            for layer, of_layer in part.groupby(part["layer"].fillna(-1)):
                colour = PALETTE[int(layer) % len(PALETTE)] if layer >= 0 else ink()
                by_seed = of_layer.groupby(["step", "seed"])["value"].mean().unstack("seed")
                axis.plot(by_seed.index, by_seed.to_numpy(), color=colour, lw=0.8, alpha=0.45)
                name = f"layer {layer:.0f}" if layer >= 0 else "as the paper trains"
                axis.plot(by_seed.index, by_seed.mean(axis=1), color=colour, label=name)
            nulls = everything[
                (everything["depth"] == depth)
                & (everything["metric"] == metric)
                & (everything["variant"] != REAL)
                & (everything["layer"].isna() | (everything["layer"] == depth - 1))
            ]
            for style, (variant, of_variant) in zip((":", "--"), nulls.groupby("variant"), strict=False):
                mean = of_variant.groupby("step")["value"].mean()
                axis.plot(mean.index, mean, color=ink(), lw=1.1, ls=style, alpha=0.8, label=f"{variant}")
            found = bounces[
                (bounces["depth"] == depth)
                & (bounces["metric"] == metric)
                & (bounces["rebound_probability"] < SIGNIFICANT)
            ]
            axis.plot(found["dip_step"], found["dip_value"], "v", ms=6, color=ink(), alpha=0.8, ls="none")
            square_root_steps(axis, curves["step"].max())
            axis.set_title(label + (f", {depth} layer{'s' if depth > 1 else ''}" if column == 0 else ""))
            if row == len(depths) - 1:
                axis.set_xlabel("minibatch (square-root scale)")
        if depth > 1:
            axes[row, 0].legend(ncols=2)
        if len(everything) > len(curves):
            axes[row, 2].legend()  # where there is room for the nulls' names
    mean = "thin: one seed, thick: their mean; triangles: dips whose rebound is not noise"
    source = "as recorded by the authors" if settings.recorded else Path(settings.corpus).name
    rate = curves["learning_rate"].iloc[0]
    figure.suptitle(f"{source}, learning rate {rate:g} ({mean})", fontsize=9.5)
    return figure

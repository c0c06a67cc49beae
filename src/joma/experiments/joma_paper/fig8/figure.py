"""The curves of Fig. 8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels, square_root_steps
from joma.experiments.joma_paper.fig8 import Fig8
from joma.experiments.joma_paper.fig8.run import BOUNCES, COLLAPSES, FALLS, STAYS

CAPTION = (
    "A row per depth: the top layer's entropy and the held-out loss along training, a colour per "
    "learning rate, and the lowest loss against the rebound, a mark per decoder."
)
"""What the figure shows, for those who cannot see it."""

_MARKS = {BOUNCES: "o", COLLAPSES: "X", FALLS: "v", STAYS: "s"}


def draw(settings: Fig8, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    curves, decoders = tables["curves"], tables["decoders"]
    depths = sorted(decoders["depth"].unique())
    rates = sorted(decoders["learning_rate"].unique())
    colours = {rate: PALETTE[number % len(PALETTE)] for number, rate in enumerate(rates)}
    top = curves["layer"] == curves["depth"] - 1
    shown = {
        "attention entropy, top layer (nats)": curves[top & (curves["metric"] == "attention_entropy")],
        "held-out loss (nats)": curves[curves["metric"] == "validation_loss"],
    }
    figure, axes = panels(len(depths), 3, width=3.9, height=2.7)
    for row, depth in enumerate(depths):
        layers = f", {depth} layer{'s' if depth > 1 else ''}"
        for column, (label, part) in enumerate(shown.items()):
            axis = axes[row, column]
            for rate, of_rate in part[part["depth"] == depth].groupby("learning_rate"):
                by_seed = of_rate.groupby(["step", "seed"])["value"].mean().unstack("seed")
                axis.plot(by_seed.index, by_seed.to_numpy(), color=colours[rate], lw=0.8, alpha=0.4)
                axis.plot(by_seed.index, by_seed.mean(axis=1), color=colours[rate], label=f"{rate:g}")
            square_root_steps(axis, curves["step"].max())
            axis.set_title(label + layers * (column == 0))
        if row == 0:
            axes[row, 0].legend(title="learning rate", ncols=2)
        of_depth = decoders[decoders["depth"] == depth]
        for course, mark in _MARKS.items():
            for rate, points in of_depth[of_depth["course"] == course].groupby("learning_rate"):
                axes[row, 2].plot(
                    points["rebound"],
                    points["lowest_loss"],
                    mark,
                    color=colours[rate],
                    ms=6,
                    ls="none",
                    alpha=0.85,
                )
        axes[row, 2].set_title("lowest held-out loss against rebound (nats)")
        if row == len(depths) - 1:
            axes[row, 0].set_xlabel("minibatch (square-root scale)")
            axes[row, 1].set_xlabel("minibatch (square-root scale)")
            axes[row, 2].set_xlabel("rebound of the entropy (nats)")
    for course, mark in _MARKS.items():
        axes[0, 2].plot([], [], mark, color=ink(), ls="none", label=course)
    axes[0, 2].legend()
    source = "as recorded by the authors" if settings.recorded else Path(settings.corpus).name
    figure.suptitle(f"{source} (thin: one seed, thick: their mean)", fontsize=9.5)
    return figure

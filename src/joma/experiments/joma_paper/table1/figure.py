"""NCorr along training for each level, beside the nulls and the paper."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.table1 import CELL, Table1
from joma.experiments.joma_paper.table1.readings import plain

CAPTION = "NCorr along training for each level, and at its ends beside the nulls and the paper."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Table1, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    alignment, paper, along = tables["alignment"], tables["paper"], tables["readings_along"]
    absolute = along[plain(along, sign="absolute")]
    figure, axes = panels(1, 2, width=5.0, height=3.6, sharey=True)
    for axis, layer in zip(axes[0], (0, 1), strict=True):
        part = alignment[(alignment["layer"] == layer) & alignment["metric"].isin(["NCorr", "shuffled"])]
        for colour, (cell, of_cell) in zip(PALETTE * 9, part.groupby(CELL), strict=False):
            curves = of_cell.pivot_table(index="step", columns=["metric", "seed"], values="value")
            axis.plot(curves["NCorr"], color=colour, lw=0.7, alpha=0.4)
            label = f"C={cell[0]}, {cell[1]} children, {cell[2:]}"
            axis.plot(curves["NCorr"].mean(axis=1), color=colour, label=label)
            axis.plot(curves["shuffled"].mean(axis=1), color=colour, ls=":", lw=1.1)
            either = absolute[(absolute["layer"] == layer) & (absolute[CELL] == list(cell)).all(axis=1)]
            axis.plot(either.groupby("step")["value"].mean(), color=colour, ls="--", lw=1.1)
            theirs = paper[(paper["layer"] == layer) & (paper[CELL] == list(cell)).all(axis=1)]
            axis.errorbar(
                [settings.steps * 1.02] * len(theirs),
                theirs["value"],
                theirs["deviation"],
                fmt="o",
                ms=4,
                mfc="none",
                color=colour,
            )
        axis.plot([], [], "--", color=ink(), label="largest absolute correlation")
        axis.plot([], [], ":", color=ink(), label="classes shuffled")
        axis.set_title(f"layer {layer} against the latents of s = {layer}")
        axis.set_xlabel("minibatch (0: untrained)")
        axis.set_ylim(0, 1.03)
    axes[0, 0].set_ylabel("NCorr (mean over latents)")
    axes[0, 0].legend(loc="lower left", fontsize=7.5)
    figure.suptitle(
        f"d = {settings.width}, learning rate {settings.learning_rate:g}, "
        + ("one seed" if settings.seeds == 1 else f"{settings.seeds} seeds (thin), mean (thick)")
        + ("; circles: the paper at d = 1024, 10,000 steps" if len(paper) else ""),
        fontsize=9.5,
    )
    return figure

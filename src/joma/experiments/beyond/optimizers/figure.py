"""Drift of the constant along training, and at its end against the step size."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.beyond.optimizers import ATTENTION, OPTIMIZERS, WITH_LAW, Optimizers
from joma.experiments.beyond.optimizers.run import select

CAPTION = "Drift of c along training, what the laws leave of it, and its end against the step size."
"""What the figure shows, for those who cannot see it."""

CONSTANTS = {"linear": "c = z² − Σₖ vₖ²", "exp": "c = z − Σₖ vₖ²/(2T)"}
"""Theorem 1's constant, as the figure has it."""


def draw(settings: Optimizers, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(2, 2, width=5.0, height=3.5)
    figure.set_layout_engine("constrained", wspace=0.05)
    for row, attention in zip(axes, ATTENTION, strict=True):
        for colour, optimizer in zip(PALETTE, OPTIMIZERS, strict=False):
            curve = select(tables["drift"], attention, optimizer, "constant").groupby("step")["value"]
            dash = "--" if optimizer in ("nesterov", "adamw") else "-"  # on momentum's and adam's
            row[0].plot(curve.median(), dash, color=colour, label=optimizer)
            if optimizer in WITH_LAW:
                left = select(tables["drift"], attention, optimizer, "law").groupby("step")["value"]
                row[0].plot(left.median().clip(lower=1e-17), color=colour, ls=":")
            ends = select(tables["rates"], attention, optimizer, "constant")
            share = ends.groupby("rate")["value"].median()
            row[1].plot(share.index / share.index.max(), share, f"o{dash}", color=colour)
        row[0].set(xscale="log", yscale="log", ylim=(1e-16, 1e2), xlabel="step")
        row[0].set(
            ylabel="|c − c(0)| / |change of its v² term|",
            title=f"{attention} attention: {CONSTANTS[attention]}",
        )
        row[1].set(xscale="log", yscale="log", xlabel="step size / its largest")
        row[1].set(
            ylabel="|c − c(0)| / |change of its v² term|",
            title=f"{attention} attention: at the end of the course",
        )
        halves = range(settings.halvings, -1, -1)
        row[1].set_xticks([0.5**h for h in halves], [f"1/{2**h}" if h else "1" for h in halves])
        row[1].minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles += axes[0, 0].plot([], [], ":", color=ink())
    labels.append(f"what the law leaves ({', '.join(WITH_LAW)};\nfor the others none is known)")
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(f"Median of {tables['drift']['run'].nunique()} seeds")
    return figure

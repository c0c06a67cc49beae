"""Course of training in each parametrisation, and the change of each logit at the end."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_embeddings import EMBEDDED, FREE, ONE_MATRIX, SnapEmbeddings

CAPTION = "Loss, mass on the common token, change of unseen logits over time; final change by probability."
"""What the figure shows, for those who cannot see it."""


def draw(settings: SnapEmbeddings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    course, tokens = (table[table["data"] == "real"] for table in (tables["course"], tables["tokens"]))
    figure, axes = panels(2, 2, width=4.8, height=3.2)
    labels = {
        "loss": ("loss (nats)", "what is learned"),
        "common mass": ("attention mass", "attention on the common token"),
        "unseen tokens": ("share of the change", "change of Z that falls on unseen tokens"),
    }
    colours = dict(zip([FREE, *EMBEDDED], (ink(), *PALETTE), strict=False))
    # The one-matrix model lies upon the free one: dots on a line.
    lines = {FREE: "-", ONE_MATRIX: ":"}
    for axis, (metric, (label, title)) in zip(axes.ravel(), labels.items(), strict=False):
        for model, colour in colours.items():
            part = course[(course["model"] == model) & (course["metric"] == metric)]
            mean = part.groupby("time")["value"].mean()
            width = 3.0 if model == ONE_MATRIX else 1.6
            axis.plot(mean.index, mean, lines.get(model, "-"), color=colour, lw=width, label=model)
        axis.set(xlabel="training time", ylabel=label, title=title)
    axis = axes[1, 1]
    for model, colour in colours.items():
        part = tokens[(tokens["model"] == model) & (tokens["seed"] == tokens["seed"].min())]
        distinct, common = (part[part["kind"] == kind] for kind in ("distinct", "common"))
        ring = model == ONE_MATRIX
        axis.scatter(
            distinct["probability"],
            distinct["value"],
            s=44 if ring else 14,
            edgecolors=colour,
            facecolors="none" if ring else colour,
            linewidths=0.9,
        )
        axis.scatter(common["probability"], common["value"], s=30, marker="x", color=colour, lw=1.2)
    axis.axhline(0, color=ink(), lw=0.8)
    axis.set(
        xlabel="P(l | n)   (dots: distinct tokens, crosses: common)",
        ylabel="change of the logit z (nats)",
        title="fates of the tokens, first seed, at the end",
    )
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure

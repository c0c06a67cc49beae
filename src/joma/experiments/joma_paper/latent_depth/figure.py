"""Excess loss, attention by height, and growth of near and far associations."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.latent_depth import DATA, MODELS, LatentDepth

CAPTION = "Left: relative excess loss. Middle: attention by height. Right: growth of near and far weights."
"""What the figure shows, for those who cannot see it."""


def draw(settings: LatentDepth, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 3, width=4.2, height=3.7)
    left, middle, right = axes[0]
    styles = {"attention": "-", "bag": "--"}
    for colour, data in zip(PALETTE, DATA, strict=False):
        for model, dashes in styles.items():
            part = tables["losses"].query("data == @data and model == @model")
            label = f"{data}, {MODELS[model]}"
            left.plot(part.groupby("step")["value"].mean(), dashes, color=colour, label=label)
        pairs = tables["attention"].query("data == @data and model == 'attention'")
        means = pairs.groupby(["seed", "height"])["attention"].mean().unstack("seed")
        middle.plot(means.mean(axis=1), "o-", color=colour, label=data)
    uniform = 1 / (2 ** (settings.depth - 1) - 1)
    middle.axhline(uniform, color=ink(), lw=0.9, ls=":", label="uniform")
    growth = tables["growth"][tables["growth"]["data"] == "deep"]
    ends = {1: "sibling", settings.depth - 1: "farthest"}
    for colour, (height, name) in zip(PALETTE[2:], ends.items(), strict=False):
        for model, dashes in styles.items():
            part = growth[(growth["model"] == model) & (growth["height"] == height)]
            curve = part.groupby("step")["value"].mean()
            right.plot(curve, dashes, color=colour, label=f"{name}, {MODELS[model]}")
    left.set(xlabel="gradient step", ylabel="excess loss (0: Bayes, 1: frequency)", ylim=(0, 1.05))
    left.set_title("Held-out loss")
    middle.set(xlabel="height of the common ancestor in the deep tree", ylabel="attention per token")
    middle.set(title="Learned attention", ylim=(0, None))
    middle.set_xticks(range(1, settings.depth))
    right.set(
        xlabel="gradient step", ylabel="association: attention × v", title="Association, deep distribution"
    )
    for axis in axes[0]:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=8)
    return figure

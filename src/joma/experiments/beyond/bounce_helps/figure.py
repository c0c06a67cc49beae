"""Entropy, loss gap and cost, depth by depth."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.beyond.bounce_helps import TIMES, WAYS, BounceHelps

CAPTION = "A row per depth: entropy of the top layer, loss gap to the untouched run, costs at the end."
"""What the figure shows, for those who cannot see it."""

SHORT = {"projections": "frozen", "entropy": "pinned"}


def draw(settings: BounceHelps, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    curves, costs = tables["curves"], tables["costs"]
    depths = sorted(curves["depth"].unique())
    figure: Figure
    figure, axes = panels(len(depths), 3, width=3.9, height=3.0)
    colours = {"": ink(), "projections": PALETTE[1], "entropy": PALETTE[0]}
    for row, depth in enumerate(depths):
        of_depth = curves[curves["depth"] == depth]
        entropy = of_depth[
            (of_depth["metric"] == "attention_entropy") & (of_depth["layer"] == depth - 1)
        ].query("when in ('', 'dip')")
        for way, part in entropy.groupby("way", sort=True):
            mean = part.groupby("step")["value"].mean()
            label = WAYS.get(str(way), "untouched")
            axes[row, 0].plot(mean, color=colours[str(way)], label=label, lw=2.4 if way == "" else 1.3)
        loss = of_depth[of_depth["metric"] == "validation_loss"]
        plain = loss[loss["way"] == ""].set_index(["seed", "step"])["value"]
        for (way, when), part in loss[loss["way"] != ""].groupby(["way", "when"]):
            gap = (part.set_index(["seed", "step"])["value"] - plain).groupby("step").mean()
            dashes = dict(zip(TIMES, ("-", "--", ":"), strict=True))[str(when)]
            axes[row, 1].plot(gap, dashes, color=colours[str(way)], label=f"{SHORT[str(way)]}, {when}")
        axes[row, 1].axhline(0, color=ink(), lw=0.8)
        cells = [(way, when) for way in WAYS for when in TIMES]
        for place, (way, when) in enumerate(cells):
            cost = costs[(costs["depth"] == depth) & (costs["way"] == way) & (costs["when"] == when)]
            filled = {"color": colours[way]} if when == "dip" else {"mfc": "none", "color": colours[way]}
            axes[row, 2].plot([place] * len(cost), cost["cost"], "o", ls="none", ms=6, alpha=0.8, **filled)
            axes[row, 2].hlines(cost["cost"].mean(), place - 0.25, place + 0.25, color=colours[way])
        axes[row, 2].axhline(0, color=ink(), lw=0.8)
        axes[row, 2].set_xticks(
            range(len(cells)), [f"{SHORT[way]}\n{when}" for way, when in cells], fontsize=7.5
        )
        axes[row, 2].set_xlim(-0.5, len(cells) - 0.5)
        name = f"{depth} layer{'s' if depth > 1 else ''}"
        axes[row, 0].set(ylabel="entropy of the top layer (nats)", title=f"{name}: attention entropy")
        axes[row, 1].set(ylabel="held-out loss − untouched (nats)", title=f"{name}: loss gap, mean")
        axes[row, 2].set(ylabel="cost at the end (nats)", title=f"{name}: each seed, and their mean")
        for column in (0, 1):
            axes[row, column].set_xlabel("minibatch")
    for column in (0, 1):
        axes[-1, column].legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, fontsize=8)
    return figure

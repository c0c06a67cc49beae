"""How often the conclusion fails, and the alignment of activations and gradients."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.cdag import LEVELS, Cdag

CAPTION = "Left: how often the conclusion fails. Middle and right: alignment of activations and gradients."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Cdag, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 3, width=4.5, height=3.9)
    shares = tables["quadruples"].query("latents == 'true'")
    lines = {
        "draft fails": ("the draft's hypotheses, weight $corr(f_k, s_j)$", "-"),
        "draft fails, own weight": ("the draft's hypotheses, the network's weight", "--"),
        "condition fails, own weight": (r"angles below $\pi/2$ in all, the network's weight", ":"),
        "condition fails": (r"angles below $\pi/2$ in all, weight $corr(f_k, s_j)$", "-."),
    }
    for colour, layer in zip(PALETTE, ("output", "hidden 2"), strict=False):
        for metric, (_, dashes) in lines.items():
            part = shares[(shares["layer"] == layer) & (shares["metric"] == metric)]
            axes[0, 0].plot(part.groupby("step")["value"].mean(), dashes, color=colour)
        axes[0, 0].plot([], [], color=colour, label=f"gradient passed down from the {layer} layer")
    for label, dashes in lines.values():
        axes[0, 0].plot([], [], dashes, color=ink(), label=label)
    axes[0, 0].set(
        ylabel="share of quadruples",
        title="gradient does not correlate with the\nlower latent, although Theorem 1 says so",
    )
    names = {
        "activation": "latents and activations\nof the hidden layers",
        "gradient": "latents and gradients\nof the hidden layers",
    }
    for axis, (metric, label) in zip(axes[0, 1:], names.items(), strict=True):
        part = tables["alignment"]
        part = part[(part["metric"] == metric) & (part["latents"] == "true")]
        for colour, level in zip(PALETTE, LEVELS, strict=False):
            for layer, dashes in (("hidden 1", "--"), ("hidden 2", "-")):
                curve = part[(part["level"] == level) & (part["layer"] == layer)]
                axis.plot(curve.groupby("step")["value"].mean(), dashes, color=colour)
            axis.plot([], [], color=colour, label=level)
        axis.plot([], [], "--", color=ink(), label="hidden layer 1 (near the input)")
        axis.plot([], [], "-", color=ink(), label="hidden layer 2 (near the loss)")
        axis.set(ylabel="best correlation of a latent, mean", title=label)
    for axis in axes[0]:
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlim(0, settings.steps)
        axis.set_xlabel("gradient step")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), fontsize=7.5)
    return figure

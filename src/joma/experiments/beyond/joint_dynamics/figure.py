"""The figure of the joint dynamics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels, square_root_steps
from joma.experiments.beyond.joint_dynamics import JointDynamics
from joma.experiments.beyond.joint_dynamics.tables import of_layers
from joma.instruments.probe.sections.index_rows import index_rows

CAPTION = (
    "Above: the block flow, and the index of each layer along training with its null. Below: heads at "
    "the end, and what is left of the index when the size of the values is held fixed."
)
"""What the figure shows, for those who cannot see it."""


def draw(settings: JointDynamics, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    curves = tables["curves"]
    depths = sorted(curves["depth"].unique())
    figure, axes = panels(2, 1 + len(depths), width=3.9, height=3.0)
    _block(axes[0, 0], tables["block"])
    _heads(figure, axes[1, 0], curves)
    low, high = 0.0, 0.0
    for column, depth in enumerate(depths, start=1):
        part = curves[curves["depth"] == depth]
        name = f"{depth} layer{'s' if depth > 1 else ''}"
        for row, given in ((0, "nothing"), (1, "value_norm")):
            axis = axes[row, column]
            bounds = _layers(axis, part, given)
            low, high = min(low, bounds[0]), max(high, bounds[1])
            axis.set_title(f"index, {name}" + ("" if row == 0 else ", values' size held fixed"))
        axes[1, column].set_xlabel("minibatch (square-root scale)")
        axes[0, column].legend(ncols=2)
    for axis in axes[:, 1:].flat:
        axis.set_ylim(low - 0.05, high + 0.05)
    figure.suptitle(
        f"Correlation of log-attention with 1/2 sum v², {Path(settings.corpus).name}, "
        f"learning rate {settings.learning_rate:g} "
        "(thin: one seed; band: shuffled tokens, ± 2 spreads; dotted: untrained)",
        fontsize=9.5,
    )
    return figure


def _block(axis: Axes, block: pd.DataFrame) -> None:
    groups = block.groupby(["attention", "start"], sort=True)
    for colour, ((kind, start), part) in zip(PALETTE, groups, strict=False):
        index = part[part["metric"] == "index"]
        for number, (_, run) in enumerate(index.groupby("run")):
            label = f"{kind}, from {start} weights" if number == 0 else None
            axis.plot(run["progress"], run["value"], color=colour, lw=1.0, alpha=0.8, label=label)
    null = block[block["metric"] == "null"].groupby("progress")["value"].std()
    axis.fill_between(null.index, -2 * null, 2 * null, color=ink(), alpha=0.12, lw=0)
    axis.axhline(1.0, color=ink(), lw=0.8, ls=":")
    axis.set_ylim(-1.05, 1.1)
    axis.set_xlabel("time / last moment")
    axis.set_title("block flow of Eq. 2 (positive control)")
    axis.legend(loc="lower right")


def _layers(axis: Axes, part: pd.DataFrame, given: str) -> tuple[float, float]:
    index = of_layers(part, "index", given)
    for layer, of_layer in index.groupby("layer"):
        colour = PALETTE[int(layer) % len(PALETTE)]
        by_seed = of_layer.pivot_table(index="step", columns="seed", values="value")
        axis.plot(by_seed.index, by_seed.to_numpy(), color=colour, lw=0.8, alpha=0.45)
        axis.plot(by_seed.index, by_seed.mean(axis=1), color=colour, label=f"layer {layer:.0f}")
    spread = of_layers(part, "null_spread").groupby("step")["value"].max()
    axis.fill_between(spread.index, -2 * spread, 2 * spread, color=ink(), alpha=0.2, lw=0)
    untrained = float(index[index["step"] == 0]["value"].abs().max())
    for level, style in ((0.0, "-"), (untrained, ":"), (-untrained, ":")):
        axis.axhline(level, color=ink(), lw=0.8, ls=style)
    last = int(index["step"].max())
    square_root_steps(axis, last)
    return float(index["value"].min()), float(index["value"].max())


def _heads(figure: Figure, axis: Axes, curves: pd.DataFrame) -> None:
    """Index at the end of training, layer by head, of the deepest decoders."""
    deepest = curves[(curves["depth"] == curves["depth"].max()) & (curves["step"] == curves["step"].max())]
    heads = (
        index_rows(deepest)
        .dropna(subset="head")
        .pivot_table(index="layer", columns="head", values="value", aggfunc="mean")
    )
    largest = max(0.1, float(heads.abs().to_numpy().max()))
    image = axis.imshow(heads.to_numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    for (row, column), value in np.ndenumerate(heads.to_numpy()):
        strong = abs(value) > 0.6 * largest
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color="w" if strong else "#1b1f24")
    axis.set_xticks(range(heads.shape[1]), [f"{head:.0f}" for head in heads.columns])
    axis.set_yticks(range(heads.shape[0]), [f"{layer:.0f}" for layer in heads.index])
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    axis.grid(visible=False)
    axis.set_title(f"index at the end, {deepest['depth'].max()} layers, mean over seeds")
    figure.colorbar(image, ax=axis)

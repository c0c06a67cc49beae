"""Curves over the steps, layer by layer, the same as a map of layer and step, and the dates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from joma.core.figures import PALETTE, ink, panels, shade
from joma.instruments.track import TrackSettings
from joma.measures.attention.statistics import ATTENTION_ENTROPY

CAPTION = (
    "Every head or matrix over the steps by layer, linear and log; maps of layer and step; and the dates."
)
"""What the figure shows, for those who cannot see it."""

_TITLES = {
    (ATTENTION_ENTROPY, "attention"): "attention entropy (nats)",
    ("stable_rank", "lower"): "stable rank, lower MLP",
    ("stable_rank", "query_key"): "stable rank, queries times keys",
    ("change_norm", "lower"): "|W(t) - W(t')|, lower MLP, neighbours",
}
_LEGEND_LINES = 8
_ONE_CURVE = ["line", "stack", "layer", "expert", "head"]


def draw(settings: TrackSettings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    values = tables["values"]
    values = values[(values["series"] == "A") & (values["against"].isin(["", "previous"]))]
    shown = [
        (title, rows)
        for (metric, matrix), title in _TITLES.items()
        if len(rows := values[(values["metric"] == metric) & (values["matrix"] == matrix)])
    ]
    figure: Figure
    figure, axes = panels(len(shown) + 1, 3, width=4.6, height=2.9)
    dips = tables["bounces"]
    dips = dips[(dips["series"] == "A") & (dips["verdict"] == "bounces")]
    for (linear, logarithmic, right), (title, rows) in zip(axes[:-1], shown, strict=True):
        own = dips[(dips["metric"] == rows["metric"].iloc[0]) & (dips["matrix"] == rows["matrix"].iloc[0])]
        _curves(linear, rows, own, shift=0)
        linear.set(title=title, xlabel="step")
        linear.legend(fontsize=7, ncols=2)
        _curves(logarithmic, rows, own, shift=1)
        logarithmic.set(title=title, xlabel="step + 1 (log)", xscale="log")
        _map(right, rows)
        right.set_title(f"{title}, by layer")
    loss = values[values["metric"] == "loss"].sort_values("step")
    if len(loss) and shown:
        twin = axes[0][0].twinx()
        twin.plot(loss["step"], loss["value"], color=ink(), ls=":", lw=1.2)
        twin.set_ylabel("loss (nats, dotted)")
        twin.grid(False)
    _dips(axes[-1][0], dips)
    moves = tables["dates"]
    _moves(axes[-1][1], moves[(moves["series"] == "A") & (moves["metric"] == "stable_rank")])
    if "beside" in tables and len(tables["beside"]):
        _draw_difference(axes[-1][2], tables["beside"], settings.align)
    else:
        axes[-1][2].set_axis_off()
    return figure


def _curves(axes: Axes, rows: pd.DataFrame, dips: pd.DataFrame, shift: int) -> None:
    layers = sorted(rows["layer"].dropna().unique())
    colour = {layer: shade(number, len(layers)) for number, layer in enumerate(layers)}
    named = set(layers[:: max(1, -(-len(layers) // _LEGEND_LINES))])
    for keys, one in rows.groupby(_ONE_CURVE, sort=False, dropna=False):
        layer = keys[2]
        if pd.isna(layer):
            continue
        one = one.sort_values("step")
        label = f"layer {layer}" if layer in named else None
        named.discard(layer)
        style = "-" if len(one) > 1 else "o"
        axes.plot(one["step"] + shift, one["value"], style, lw=1.0, color=colour[layer], label=label)
    for _, dip in dips[dips["layer"].notna()].iterrows():
        own = rows[(rows["layer"] == dip["layer"]) & (rows["step"] == dip["dip_step"])]
        if not pd.isna(dip["head"]):
            own = own[own["head"] == dip["head"]]
        at, height = dip["dip_step"] + shift, own["value"].mean()
        around = [[at - dip["dip_from"] - shift], [dip["dip_to"] + shift - at]]
        axes.errorbar(at, height, xerr=around, fmt="v", color=colour[dip["layer"]], mec=ink(), ms=5, zorder=5)


def _map(axes: Axes, rows: pd.DataFrame) -> None:
    line = rows["line"].iloc[0]
    grid = rows[rows["line"] == line].pivot_table(index="layer", columns="step", values="value")
    # Each layer in units of its own mean, so that the course shows beside the differences of layers.
    relative = 100 * (grid.div(grid.mean(axis=1).abs().clip(lower=1e-300), axis=0) - 1)
    image = axes.imshow(relative.to_numpy(float), aspect="auto", origin="lower", interpolation="nearest")
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, label="% above the layer's mean")
    ticks = np.unique(np.linspace(0, len(grid.columns) - 1, 6).astype(int))
    axes.set_xticks(ticks, [str(grid.columns[tick]) for tick in ticks])
    ticks = np.unique(np.linspace(0, len(grid.index) - 1, 8).astype(int))
    axes.set_yticks(ticks, [str(grid.index[tick]) for tick in ticks])
    axes.set_xlabel(f"step (as measured){f', {line}' if line else ''}")
    axes.set_ylabel("layer")


def _dips(axes: Axes, dips: pd.DataFrame) -> None:
    """Dips beyond their null, each with the checkpoints around it."""
    dips = dips[dips["layer"].notna()]
    for number, ((metric, matrix), own) in enumerate(dips.groupby(["metric", "matrix"], sort=False)):
        heights = own["layer"].astype(float) + 0.12 * number
        around = [own["dip_step"] - own["dip_from"], own["dip_to"] - own["dip_step"]]
        label = _TITLES.get((metric, matrix), f"{metric}, {matrix}").replace(" (nats)", "")
        colour = PALETTE[number % len(PALETTE)]
        axes.errorbar(own["dip_step"], heights, xerr=around, fmt="v", ms=5, color=colour, label=label)
    axes.set(title="dips that bounce back, beyond their null")
    _by_layer(axes, "no dip bounces back beyond its null" if dips.empty else "")


def _moves(axes: Axes, moves: pd.DataFrame) -> None:
    """Half of the fall and of the return of the lower MLP's rank, each with the checkpoints around it."""
    moves = moves[(moves["matrix"] == "lower") & moves["step"].notna()]
    moves = moves[moves["line"] == (moves["line"].iloc[0] if len(moves) else "")]
    for number, (move, own) in enumerate(moves.groupby("move")):
        around = [own["step"] - own["step_from"], own["step_to"] - own["step"]]
        heights = own["layer"].astype(float) + 0.15 * number
        axes.errorbar(
            own["step"], heights, xerr=around, fmt="o", ms=4, color=PALETTE[number], label=f"half the {move}"
        )
    axes.set(title="stable rank, lower MLP: dates of each layer")
    _by_layer(axes, "no layer has a date" if moves.empty else "")


def _by_layer(axes: Axes, instead: str) -> None:
    """Steps across and layers upward, with a legend; or words in place of an empty panel."""
    if instead:
        axes.text(0.5, 0.5, instead, ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(xlabel="step", ylabel="layer")
    axes.margins(y=0.15)
    low, high = axes.get_ylim()
    if high - low < 1:  # a single layer
        axes.set_ylim((low + high) / 2 - 0.6, (low + high) / 2 + 0.6)
    axes.legend(fontsize=7)


def _draw_difference(axes: Axes, beside: pd.DataFrame, align: str) -> None:
    """By how much the first series lies above the second, by layer."""
    metric, matrix = next(
        (key for key in _TITLES if ((beside["metric"] == key[0]) & (beside["matrix"] == key[1])).any()),
        (beside["metric"].iloc[0], beside["matrix"].iloc[0]),
    )
    rows = beside[(beside["metric"] == metric) & (beside["matrix"] == matrix)]
    layers = sorted(rows["layer"].dropna().unique())
    for number, layer in enumerate(layers):
        own = rows[rows["layer"] == layer].groupby("at")["difference"].mean()
        colour = shade(number, len(layers))
        axes.plot(own.index, own, ".-", lw=1.0, color=colour)
    axes.axhline(0.0, color=ink(), lw=0.8)
    axes.set(title=f"{_TITLES.get((metric, matrix), metric)}: first less second", xlabel=align)

"""The figure of a monitored run: loss, heat maps over steps, ranks, alarms and messages on one time axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from joma.core.figures import PALETTE, ink, panels
from joma.instruments.monitor.messages import LARGE_LOGIT, LOW_ENTROPY, Kind, Message
from joma.instruments.monitor.weights import LOWER, QUERY_KEY

_MARKS: dict[Kind, tuple[str, str, str]] = {
    "alarm": ("v", PALETTE[1], "alarm"),
    "not valid": ("v", "0.5", "change, no probability claimed"),
    "state": ("s", PALETTE[3], "state message"),
    "spike": ("o", PALETTE[2], "spike that is over"),
}
_TICKS = 12
LEAST_RANGE = 1.5
"""Largest over smallest value from which on a scale of decades shows something."""
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def draw_monitor(table: pd.DataFrame, messages: Sequence[Message]) -> Figure:
    """One time axis: loss with all messages, gradient norm, entropy and largest logit of each head, ranks.

    A row of a heat map is a head, layer by layer; blue is attention on few keys, and large logits.
    """
    figure: Figure
    figure, axes = panels(5, 1, width=9.5, height=2.0, sharex=True)
    loss, norm, entropy, logit, ranks = axes[:, 0]
    _losses(loss, table)
    _norms(norm, table)
    _heat_map(figure, entropy, table, "normalised_entropy", "attention entropy / log n", Normalize(0, 1))
    _heat_map(figure, logit, table, "largest_logit", "largest logit", LogNorm(1, LARGE_LOGIT))
    _ranks(ranks, table)
    _told(loss, messages)
    for axis in (norm, entropy, logit, ranks):
        for message in messages:
            if message.kind in ("alarm", "not valid"):
                axis.axvline(message.step, color=_MARKS[message.kind][1], lw=1, ls="--")
    ranks.set_xlabel("step")
    return figure


def _losses(axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == "loss"].sort_values("step")
    axis.plot(own["step"], own["value"], color=PALETTE[0], lw=1, label="loss")
    axis.set(ylabel="loss", title="loss")
    if own.empty:
        _nothing(axis, "no loss was told")


def _norms(axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == "gradient_norm"].sort_values("step")
    axis.set_title("gradient norm")
    if own.empty:
        _nothing(axis, "no gradient was there")
        return
    axis.plot(own["step"], own["value"], color=ink(), lw=0.7)
    axis.set_ylabel("norm")
    low, high = own["value"].min(), own["value"].max()
    if high < LEAST_RANGE * low:  # clipped: all the same but for rounding
        axis.set_ylim(0, LEAST_RANGE * high)
    else:
        _logarithmic(axis)


def _logarithmic(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(PLAIN)
    axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    low, high = axis.get_ylim()
    axis.yaxis.set_minor_formatter(PLAIN if high < 100 * low else NullFormatter())


def _told(axis: Axes, messages: Sequence[Message]) -> None:
    for kind, (marker, colour, words) in _MARKS.items():
        steps = [message.step for message in messages if message.kind == kind]
        if steps:
            height = axis.get_xaxis_transform()
            axis.plot(
                steps, np.full(len(steps), 0.95), marker, color=colour, transform=height, label=words, ms=6
            )
    axis.legend(loc="best", ncols=2)


def _heat_map(
    figure: Figure, axis: Axes, table: pd.DataFrame, metric: str, title: str, norm: Normalize
) -> None:
    own = table[(table["metric"] == metric) & table["head"].notna()]
    axis.set_title(title)
    if own.empty:
        _nothing(axis, f"{metric} was not measured")
        return
    grid = own.assign(row=_names(own)).pivot_table(
        index="row", columns="step", values="value", sort=False, dropna=False
    )
    grid = grid[sorted(grid.columns)]
    steps = grid.columns.to_numpy(float)
    width = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    edges = np.append(steps, steps[-1] + width) - width / 2
    colours = "viridis" if metric == "normalised_entropy" else "viridis_r"
    mesh = axis.pcolormesh(
        edges, np.arange(len(grid) + 1) - 0.5, grid.to_numpy(float), cmap=colours, norm=norm, rasterized=True
    )
    axis.invert_yaxis()
    axis.grid(visible=False)
    every = max(1, -(-len(grid) // _TICKS))
    axis.set_yticks(range(0, len(grid), every), list(grid.index[::every]))
    axis.set_ylabel("layer.head")
    bar = figure.colorbar(mesh, ax=axis, fraction=0.03, pad=0.01)
    mark = LOW_ENTROPY if metric == "normalised_entropy" else LARGE_LOGIT
    bar.ax.axhline(mark, color=ink(), lw=1.5)


def _names(rows: pd.DataFrame) -> pd.Series[str]:
    """``3.1``, and which call where a module attends more than once, ``encoder`` and ``decoder`` apart."""
    names = rows["layer"].astype(str) + "." + rows["head"].astype(str)
    places = rows.groupby(["layer", "head"])["module"].transform("nunique")
    names = names.where(places == 1, rows["module"] + "." + rows["head"].astype(str))
    return names.where(rows["call"] == 0, names + " call " + rows["call"].astype(str))


def _ranks(axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == "stable_rank"]
    axis.set_title("stable rank, a line a layer")
    if own.empty:
        _nothing(axis, "no stable rank was read")
        return
    for module, colour, words in ((LOWER, PALETTE[0], "lower MLP"), (QUERY_KEY, PALETTE[1], "$W_Q^T W_K$")):
        lines = own[own["module"] == module].groupby("layer")
        for number, (_, line) in enumerate(lines):
            line = line.sort_values("step")
            axis.plot(
                line["step"], line["value"], ".-", color=colour, lw=0.9, label=words if number == 0 else None
            )
    axis.set_ylabel("stable rank")
    _logarithmic(axis)
    axis.legend(loc="best", ncols=2)


def _nothing(axis: Axes, words: str) -> None:
    axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes)

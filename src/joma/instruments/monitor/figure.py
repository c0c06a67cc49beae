"""The figure of a monitored run: loss, heat maps over steps, ranks, alarms and messages on one time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from joma.core.figures import PALETTE, ink, panels
from joma.instruments.monitor.alarms.messages import LARGE_LOGIT, LOW_ENTROPY, Kind, Message
from joma.instruments.monitor.measuring.rows import LOG_NORM
from joma.instruments.monitor.measuring.weights import LOWER, QUERY_KEY

_MARKS: dict[Kind, tuple[str, str, str]] = {
    "alarm": ("v", PALETTE[1], "alarm"),
    "not valid": ("v", "0.5", "change, not valid: no probability claimed"),
    "not judged": ("^", "0.5", "change, not yet judged: no probability claimed"),
    "state": ("s", PALETTE[3], "state message"),
    "spike": ("o", PALETTE[2], "spike that is over"),
    "act": ("*", PALETTE[4], "act of the monitor"),
    "change": ("d", "0.3", "changed from outside"),
}
_TICKS = 12
_LEAST_SPAN, _LEAST_LOGIT = 0.1, 1.0
"""Of the colours of entropies, so that noise is not stretched; logits below this are all one colour."""
LEAST_RANGE = 1.5
"""Largest over smallest value from which on a scale of decades shows something."""
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def draw_monitor(table: pd.DataFrame, messages: Sequence[Message]) -> Figure:
    """One time axis: loss with all messages, gradient norm, entropy and largest logit of each head, ranks.

    What was not measured has no panel. A row of a heat map is a head, layer by layer; blue is
    attention on few
    keys, and logits far from 0. Dashed lines are changes.
    """
    figure: Figure
    measured = set(table["metric"])
    drawn = [panel for metric, panel in _PANELS.items() if metric in measured] or [_losses]
    figure, axes = panels(len(drawn), 1, width=9.5, height=2.0, sharex=True)
    for panel, axis in zip(drawn, axes[:, 0], strict=True):
        panel(figure, axis, table)
        for message in messages:
            if message.kind in ("alarm", "not valid", "not judged"):
                axis.axvline(message.step, color=_MARKS[message.kind][1], lw=1, ls="--")
    _mark_messages(axes[0, 0], messages)
    axes[-1, 0].set_xlabel("step")
    return figure


def _losses(_figure: Figure, axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == "loss"].sort_values("step")
    axis.plot(own["step"], own["value"], color=PALETTE[0], lw=1, label="loss")
    axis.set(ylabel="loss")
    axis.set_title("loss", loc="left")
    if own.empty:
        axis.text(0.5, 0.5, "no loss was reported", ha="center", va="center", transform=axis.transAxes)


def _norms(_figure: Figure, axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == "gradient_norm"].sort_values("step")
    axis.set_title("gradient norm", loc="left")
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


def _mark_messages(axis: Axes, messages: Sequence[Message]) -> None:
    for order, kind in enumerate(reversed(_MARKS)):  # alarms lie on top
        marker, colour, words = _MARKS[kind]
        steps = [message.step for message in messages if message.kind == kind]
        if steps:
            height = axis.get_xaxis_transform()
            axis.plot(
                steps,
                np.full(len(steps), 0.95),
                marker,
                color=colour,
                transform=height,
                label=words,
                ms=6,
                zorder=5 + order,
            )
    axis.legend(loc="best", ncols=2)


def _entropies(figure: Figure, axis: Axes, table: pd.DataFrame) -> None:
    values = table[table["metric"] == "normalised_entropy"]["value"].to_numpy(float)
    low = min(np.nanmin(values, initial=1.0), 1 - _LEAST_SPAN)
    _heat_map(figure, axis, table, "normalised_entropy", "attention entropy / log n", Normalize(low, 1))


def _logits(figure: Figure, axis: Axes, table: pd.DataFrame) -> None:
    values = np.abs(table[table["metric"] == "largest_logit"]["value"].to_numpy(float))
    high = max(np.nanmax(values[np.isfinite(values)], initial=0.0), 2 * _LEAST_LOGIT)
    title = "largest logit (its size, where it is negative)"
    _heat_map(figure, axis, table, "largest_logit", title, LogNorm(_LEAST_LOGIT, min(high, LARGE_LOGIT)))


def _heat_map(
    figure: Figure, axis: Axes, table: pd.DataFrame, metric: str, title: str, norm: Normalize
) -> None:
    own = table[(table["metric"] == metric) & table["head"].notna()]
    axis.set_title(title, loc="left")
    grid = own.assign(row=_names(own)).pivot_table(
        index="row", columns="step", values="value", sort=False, dropna=False
    )
    grid = grid[sorted(grid.columns)]
    steps = grid.columns.to_numpy(float)
    width = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    edges = np.append(steps, steps[-1] + width) - width / 2
    colours = "viridis" if metric == "normalised_entropy" else "viridis_r"
    values = np.abs(grid.to_numpy(float))
    values = np.where(np.isnan(values), np.nan, np.clip(values, norm.vmin, norm.vmax))
    mesh = axis.pcolormesh(
        edges, np.arange(len(grid) + 1) - 0.5, values, cmap=colours, norm=norm, rasterized=True
    )
    axis.invert_yaxis()
    axis.grid(visible=False)
    every = max(1, -(-len(grid) // _TICKS))
    axis.set_yticks(range(0, len(grid), every), list(grid.index[::every]))
    axis.set_ylabel("layer.head")
    bar = figure.colorbar(mesh, ax=axis, fraction=0.03, pad=0.01)
    bar.ax.yaxis.set_major_formatter(PLAIN)
    few = isinstance(norm, LogNorm) and norm.vmin is not None and (norm.vmax or 0.0) < 100 * norm.vmin
    if few:
        bar.ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    bar.ax.yaxis.set_minor_formatter(PLAIN if few else NullFormatter())
    mark = LOW_ENTROPY if metric == "normalised_entropy" else LARGE_LOGIT
    if norm.vmin is not None and norm.vmax is not None and norm.vmin <= mark <= norm.vmax:
        bar.ax.axhline(mark, color=ink(), lw=1.5)


def _names(rows: pd.DataFrame) -> pd.Series[str]:
    """``3.1``, with the stack before it where there are several, and which call where a module attends more
    than once; self and cross attention of a layer by their modules' names."""
    stacks = _stacks(rows)
    names = (stacks + " " + rows["layer"].astype(str)).str.lstrip() + "." + rows["head"].astype(str)
    places = rows.assign(stack=stacks).groupby(["stack", "layer", "head"])["module"].transform("nunique")
    names = names.where(places == 1, rows["module"] + "." + rows["head"].astype(str))
    return names.where(rows["call"] == 0, names + " call " + rows["call"].astype(str))


def _stacks(rows: pd.DataFrame) -> pd.Series[str]:
    return rows["stack"] if "stack" in rows else pd.Series("", rows.index)


def _ranks(_figure: Figure, axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == "stable_rank"]
    axis.set_title("stable rank, a line a layer", loc="left")
    for module, colour, words in ((LOWER, PALETTE[0], "lower MLP"), (QUERY_KEY, PALETTE[1], "$W_Q^T W_K$")):
        part = own[own["module"] == module]
        lines = part.assign(stack=_stacks(part)).groupby(["stack", "layer"])
        for number, (_, line) in enumerate(lines):
            line = line.sort_values("step")
            axis.plot(
                line["step"], line["value"], ".-", color=colour, lw=0.9, label=words if number == 0 else None
            )
    axis.set_ylabel("stable rank")
    _logarithmic(axis)
    axis.legend(loc="best", ncols=2)


def _products(_figure: Figure, axis: Axes, table: pd.DataFrame) -> None:
    own = table[table["metric"] == LOG_NORM]
    axis.set_title("spectral norm of $W_Q^T W_K$, the largest head of each layer", loc="left")
    lines = own.assign(stack=_stacks(own)).groupby(["stack", "layer", "step"])["value"].max().reset_index()
    for number, (_, line) in enumerate(lines.groupby(["stack", "layer"])):
        axis.plot(line["step"], np.exp(line["value"]), color=PALETTE[number % len(PALETTE)], lw=0.9)
    axis.set_ylabel("norm")
    _logarithmic(axis)


_PANELS: dict[str, Callable[[Figure, Axes, pd.DataFrame], None]] = {
    "loss": _losses,
    "gradient_norm": _norms,
    "normalised_entropy": _entropies,
    "largest_logit": _logits,
    LOG_NORM: _products,
    "stable_rank": _ranks,
}
"""What is drawn of each metric that was measured."""

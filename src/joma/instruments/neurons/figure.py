"""The figure of pattern superposition: scores, those of shuffled contexts, and what neurons answer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from joma.core.figures import PALETTE, ink
from joma.instruments.neurons.page import Context, Neuron, Piece, neurons_of
from joma.runs.job import Job

CAPTION = "Scores beside the null's, by layer, and a few neurons' contexts."
"""What the figure shows, for those who cannot see it."""

_NEURONS, _PATTERNS, _CONTEXTS = 3, 2, 2
_COLUMNS = 128
"""Characters in a line of text."""
_FONT = 7.6
_MOST_CHARACTERS = 100


def draw(settings: Job, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    shown = neurons_of(tables)[:_NEURONS]
    lines = [_lines(neuron) for neuron in shown]
    height = sum(len(text) for text in lines) * _FONT * 1.45 / 72 + 0.3
    figure = Figure(figsize=(9.4, 3.1 + height))
    scores, layers, words = figure.subplot_mosaic(
        [["scores", "layers"], ["words", "words"]], height_ratios=[3.1, max(height, 0.3)]
    ).values()
    _histogram(scores, tables)
    _by_layer(layers, tables)
    _write(words, lines)
    return figure


def _histogram(axes: Axes, tables: Mapping[str, pd.DataFrame]) -> None:

    series = {
        "shuffled contexts": (tables["null"], ink(), ":"),
        "neurons": (tables["neurons"], PALETTE[0], "-"),
    }
    if "untrained_neurons" in tables:
        series["untrained network"] = (tables["untrained_neurons"], PALETTE[1], "--")
    values = {
        name: table[table["metric"] == "superposition"]["value"].dropna().to_numpy()
        for name, (table, _, _) in series.items()
    }
    largest = max((v.max() for v in values.values() if len(v)), default=1.0)
    edges = np.linspace(0, max(largest, 1e-6), 41)
    for name, (_, colour, dashes) in series.items():
        if len(values[name]):
            share = np.histogram(values[name], edges)[0] / len(values[name])
            axes.stairs(share, edges, color=colour, ls=dashes, label=name, lw=1.5)
    axes.set_yscale("log")
    axes.set(xlabel="superposition score", ylabel="share of neurons", title="scores, beside the null's")
    axes.legend()


def _by_layer(axes: Axes, tables: Mapping[str, pd.DataFrame]) -> None:

    for prefix, label, colour, dashes in (
        ("", "neurons", PALETTE[0], "-"),
        ("untrained_", "untrained network", PALETTE[1], "--"),
    ):
        if f"{prefix}layers" not in tables:
            continue
        table = tables[f"{prefix}layers"]
        if "copy" in table:  # untrained networks: their mean
            table = table.groupby(["layer", "stack"], sort=False).mean().reset_index()
        for number, (stack, part) in enumerate(table.groupby("stack", sort=False)):
            axes.plot(
                part["layer"],
                part["share_p_below_5_percent"],
                marker="os^d"[number % 4],
                ms=4,
                color=colour,
                ls=dashes,
                label=f"{label}, {stack}" if stack else label,
            )
    axes.axhline(0.05, color=ink(), lw=1.0, ls=":", label="by chance")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="layer", ylabel="share of neurons with p ≤ 0.05", title="in superposition, by layer")
    axes.legend()


Line = list[tuple[str, str]]
"""Words of one line, each with its style: plain, bold, query, heading."""


def _lines(neuron: Neuron) -> list[Line]:
    numbers = neuron.numbers.split(";")[0]
    lines: list[Line] = [[(f"{neuron.heading}: {numbers}", "heading")]]
    patterns: list[tuple[str, list[Context]]] = [(p.name, p.contexts) for p in neuron.patterns[:_PATTERNS]]
    for name, contexts in patterns or [("", neuron.others)]:
        for number, context in enumerate(contexts[:_CONTEXTS]):
            wrapped = _wrap(context)
            for at, line in enumerate(wrapped):
                lines.append([(f" {name if not number and not at else ' '}  ", "bold"), *line])
    lines.append([])
    return lines


def _wrap(context: Context) -> list[Line]:
    """Pieces in lines, broken before pieces that begin with a blank."""
    query = next(number for number, piece in enumerate(context.pieces) if piece.query)
    length = 0
    begin = query
    # Back from the query while there is room; a bold piece farther back is worth a gap, not a page.
    while begin > 0 and length < _MOST_CHARACTERS:
        begin -= 1
        length += len(_whole(context.pieces[begin]))
    lines: list[Line] = [[("…" if begin and context.pieces[begin].text != "…" else "", "plain")]]
    for piece in context.pieces[begin : query + 4]:
        style = "bold" if piece.bold else "query" if piece.query else "plain"
        used = sum(len(text) for text, _ in lines[-1])
        if used + len(_whole(piece)) > _COLUMNS and piece.lead:
            lines.append([])
        lines[-1].append((_whole(piece), style))
    return lines


def _whole(piece: Piece) -> str:
    return piece.lead + piece.text


def _write(axes: Axes, blocks: list[list[Line]]) -> None:
    """Words at their places in a font of fixed width, bold ones among plain ones."""
    axes.set_axis_off()
    lines = [line for block in blocks for line in block]
    count = max(len(lines), 1)
    styles: dict[str, dict[str, Any]] = {
        "plain": {"alpha": 0.75},
        "bold": {"weight": "bold"},
        "query": {"color": PALETTE[1]},
        "heading": {"weight": "bold", "color": PALETTE[0]},
    }
    for row, line in enumerate(lines):
        column = 0
        for text, style in line:
            if text.strip():
                axes.text(
                    column / (_COLUMNS + 6),
                    1 - row / count,
                    # A dollar sign would begin a formula.
                    text.replace("$", r"\$"),
                    family="monospace",
                    fontsize=_FONT,
                    va="top",
                    transform=axes.transAxes,
                    **styles[style],
                )
            column += len(text)

"""The contexts of neurons in superposition, for the report: patterns side by side, attended tokens bold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_uppercase

import pandas as pd

TABLES = ("neurons", "contexts", "context_tokens")
"""A run with these tables has such a part of its section."""


@dataclass(frozen=True)
class Piece:
    """One token of a context."""

    lead: str
    """The blanks before its text, which are neither bold nor underlined."""
    text: str
    bold: bool
    """Among the strongest that the query attends to."""
    query: bool
    """The position at which the neuron is active."""
    weight: str
    """Its attention, for the tooltip; empty where none is known."""


@dataclass(frozen=True)
class Context:
    """One context of a neuron."""

    activation: float
    pieces: list[Piece]


@dataclass(frozen=True)
class Pattern:
    """Contexts whose queries attend to like tokens."""

    name: str
    """A, B, ...; empty for contexts that belong to none."""
    contexts: list[Context]


@dataclass(frozen=True)
class Neuron:
    """One neuron, as the page shows it."""

    heading: str
    numbers: str
    patterns: list[Pattern]
    others: list[Context]
    """Contexts in no pattern."""


def neurons_of(tables: Mapping[str, pd.DataFrame]) -> list[Neuron]:
    """The neurons whose contexts the tables of ``joma.instruments.neurons.probe`` hold; none without them."""
    if any(name not in tables for name in TABLES):
        return []
    keys = ["layer", "stack", "neuron"]
    contexts = tables["contexts"]
    chosen = contexts[keys].drop_duplicates()
    values = tables["neurons"].merge(chosen, on=keys)
    wide = values.pivot(index=keys, columns="metric", values="value")
    tokens = dict(list(tables["context_tokens"].groupby([*keys, "rank"], sort=False)))
    shown = []
    for key, of_neuron in contexts.groupby(keys, sort=False):
        layer, stack, neuron = key
        grouped: dict[int, list[Context]] = {}
        for row in of_neuron.sort_values("rank").itertuples():
            pieces = _pieces(tokens[layer, stack, neuron, row.rank])
            grouped.setdefault(int(row.pattern), []).append(Context(float(row.activation), pieces))
        others = grouped.pop(-1, [])
        patterns = [Pattern(ascii_uppercase[number % 26], grouped[number]) for number in sorted(grouped)]
        where = f"{stack}, layer {layer}" if stack else f"layer {layer}"
        shown.append(Neuron(f"{where}, neuron {neuron}", _numbers(wide.loc[key]), patterns, others))
    return shown


def _numbers(row: Mapping[str, float]) -> str:
    if not row["superposition"] >= 0:
        return f"not scored: {row['contexts']:.0f} contexts activate it"
    patterns = int(row["patterns"])
    found = (
        f"{patterns} patterns, similarity {row['cohesion']:.2f} within the loosest and {row['between']:.2f} "
        f"between them, query shared by {row['shared_queries']:.0%} of pairs"
        + (
            f", cosine of their embeddings {row['relatedness']:.2f}"
            if row["relatedness"] == row["relatedness"]
            else ""
        )
        if patterns
        else "no two patterns stand apart"
    )
    return (
        f"superposition {row['superposition']:.2f} (p = {row['p_value']:.2g}, q = {row['q_value']:.2g}); "
        f"{found}; mean similarity of all {row['contexts']:.0f} contexts {row['similarity']:.2f}"
    )


def _pieces(tokens: pd.DataFrame) -> list[Piece]:
    """The tokens shown, with dots where some between them are not."""
    pieces: list[Piece] = []
    following = 0
    for token in tokens.itertuples():
        if token.place != following:
            pieces.append(Piece(" ", "\N{HORIZONTAL ELLIPSIS}", False, False, ""))
        following = token.place + 1
        # A line's end is a token like others; as a blank it would be lost between two lines.
        text = str(token.piece).replace("\r", "").replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")
        weight = f"{token.weight:.2f}" if token.weight > 0 else ""
        inner = text.lstrip()
        # Of a token of blanks alone, they are the text.
        lead = text[: len(text) - len(inner)] if inner else ""
        pieces.append(Piece(lead, inner or text, bool(token.bold), bool(token.query), weight))
    return pieces

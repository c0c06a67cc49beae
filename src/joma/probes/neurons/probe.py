"""``joma.probe_neurons``: pattern superposition in the MLPs of a real model (JoMA Fig. 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from joma.errors import InputError
from joma.probes.neurons.find import NeuronContexts, find_neurons
from joma.probes.neurons.meaning import embedding_matrix
from joma.probes.neurons.scores import (
    choose_neurons,
    context_tables,
    layer_table,
    neuron_table,
    null_table,
    score_layers,
)
from joma.probes.neurons.settings import BATCH_TOKENS, SHOWN, SMALLEST, TOKENS, TOP, WINDOW
from joma.probes.reading.loading import load_model
from joma.probes.reading.texts import windows
from joma.progress import Progress

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Neurons:
    """What :func:`probe_neurons` found."""

    tables: dict[str, pandas.DataFrame]
    """``neurons`` and ``null`` (:mod:`joma.probes.neurons.scores`), ``layers`` (their summary), ``contexts``
    and ``context_tokens`` (of the neurons shown), ``model`` (what was probed), and ``not_measured``, where
    blocks were left out, with the reasons."""


def probe_neurons(
    model: str | Path | nn.Module,
    text: Any,
    *,
    tokenizer: Any = None,
    revision: str | None = None,
    column: str | None = None,
    length: int | None = WINDOW,
    tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    layers: Sequence[int] | None = None,
    neurons: Sequence[int] | None = None,
    top: int = TOP,
    smallest: int = SMALLEST,
    show: int = SHOWN,
    seed: int = 0,
    device: str = "auto",
    dtype: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Neurons:
    """Find the neurons that answer to unrelated patterns, and the contexts that show it.

    One pass over the text keeps the windows that activate each neuron most; what the query token attends
    to in them is clustered, and scored against shuffled contexts.

    Args:
        model: see :func:`joma.probes.reading.loading.load_model`.
        tokenizer: see :func:`joma.probes.reading.loading.load_model`.
        revision: see :func:`joma.probes.reading.loading.load_model`.
        device: see :func:`joma.probes.reading.loading.load_model`.
        dtype: see :func:`joma.probes.reading.loading.load_model`.
        trust_remote_code: see :func:`joma.probes.reading.loading.load_model`.
        text: see :func:`joma.probes.reading.texts.windows`.
        column: see there.
        length: of the windows, by default 128 tokens; see there.
        tokens: at most, by default 50,000; see there.
        batch_tokens: see there.
        layers: numbers of those to look at; all by default.
        neurons: numbers of those to look at, meant in each layer; all by default.
        top: contexts kept for each neuron.
        smallest: contexts that make a pattern; at most half of ``top``.
        show: neurons whose contexts are written out: the largest scores, or the first of ``neurons``.
        seed: of the shuffles.
        progress: shows a bar.

    Raises:
        InputError: a model, text or setting that cannot be used as it is.
        UnfinishedError: out of memory.
    """
    if smallest < 2 or top < 2 * smallest:
        raise InputError(
            f"top = {top} contexts and smallest = {smallest}: two patterns take twice smallest (at least 2) "
            "contexts; raise top, or lower smallest."
        )
    if show < 1:
        raise InputError(f"show = {show} in probe_neurons; give at least 1.")
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    pieces = windows(
        text,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        column=column,
        length=length,
        tokens=tokens,
        batch_tokens=batch_tokens,
        at_most=TOKENS,
    )
    special = getattr(loaded.tokenizer, "all_special_ids", None) or ()
    found = find_neurons(
        loaded.model,
        pieces,
        layers=layers,
        neurons=neurons,
        top=top,
        special=special,
        seed=seed,
        progress=progress,
    )
    tables = superposition_tables(
        found,
        piece_of(loaded.tokenizer),
        embedding=embedding_matrix(loaded.model),
        neurons=neurons,
        smallest=smallest,
        show=show,
        seed=seed,
    )
    import pandas

    described = {
        "model": loaded.name,
        "tokens": found.tokens,
        "windows": found.windows_read,
        "window": pieces.length,
        "contexts_per_neuron": top,
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
    }
    tables["model"] = pandas.DataFrame([described])
    return Neurons(tables)


def superposition_tables(
    found: NeuronContexts,
    piece: Callable[[int], str],
    *,
    embedding: NDArray[np.float32] | None = None,
    neurons: Sequence[int] | None = None,
    smallest: int = SMALLEST,
    show: int = SHOWN,
    seed: int = 0,
) -> dict[str, pandas.DataFrame]:
    """Score what was found and write it out: the tables of :class:`Neurons` but for ``model``."""
    import pandas

    scores = score_layers(found, piece=piece, embedding=embedding, smallest=smallest, seed=seed)
    table, null = neuron_table(scores), null_table(scores)
    if neurons is None:
        chosen = choose_neurons(table, show)
    else:
        once = table[table["metric"] == "contexts"]
        chosen = [(int(r.layer), str(r.stack), int(r.neuron)) for r in once.head(show).itertuples()]
    contexts, tokens = context_tables(found, scores, chosen, piece)
    tables = {
        "layers": layer_table(table, null),
        "contexts": contexts,
        "context_tokens": tokens,
        "neurons": table,
        "null": null,
    }
    if found.skipped:
        tables["not_measured"] = pandas.DataFrame(
            {"block": list(found.skipped), "reason": list(found.skipped.values())}
        )
    return tables


def piece_of(tokenizer: Any) -> Callable[[int], str]:
    """Token id -> its text, with the blank before it where there is one; the number without a tokenizer."""
    if tokenizer is None:
        return lambda number: f" {number}"

    # WordPiece marks what continues a word; all other schemes mark the blank (as such, or as U+0120, U+2581).
    vocabulary = [str(token) for token in tokenizer.get_vocab()]
    blanks = any(token[:1] in (" ", "\u0120", "\u2581") and len(token) > 1 for token in vocabulary)
    word_pieces = not blanks and any(token.startswith("##") for token in vocabulary)

    def piece(number: int) -> str:
        token = str(tokenizer.convert_ids_to_tokens(number))
        if word_pieces:
            return token[2:] if token.startswith("##") else f" {token}"
        if token.startswith("\u2581"):  # SentencePiece, whose blank gets lost in decoding
            return token.replace("\u2581", " ")
        return str(tokenizer.decode([number]))

    return piece

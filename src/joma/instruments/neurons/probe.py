"""``joma.probe_neurons``: pattern superposition in the MLPs of a real model (JoMA Fig. 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import nn

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.neurons.find import NeuronContexts, find_neurons
from joma.instruments.neurons.meaning import embedding_matrix
from joma.instruments.neurons.measured import BATCH_TOKENS, COPIES, SHOWN, SMALLEST, TOKENS, TOP, WINDOW
from joma.instruments.neurons.scores import (
    choose_neurons,
    context_tables,
    layer_table,
    neuron_table,
    null_table,
    score_layers,
)
from joma.instruments.reading.loading import LoadedModel, load_model
from joma.instruments.reading.settings import ReadingSettings
from joma.instruments.reading.texts import Text, Windows, windows
from joma.instruments.reading.untrained import check_null, untrained_copies
from joma.runs.result import JobResult

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedTokenizerBase as Tokenizer


@dataclass(frozen=True, repr=False)
class NeuronsResult(JobResult):
    """A model's neurons with the contexts that activate them."""

    tables: dict[str, pandas.DataFrame]
    """``neurons`` and ``null`` (module ``scores``), ``layers`` (their summary), ``contexts``
    and ``context_tokens`` (of the neurons shown), ``model`` (what was probed), ``untrained_neurons`` and
    ``untrained_layers`` (those of untrained networks of its shape, one ``copy`` below the other), and
    ``not_measured``, where blocks or the untrained copies were left out, with the reasons."""


def probe_neurons(
    model: str | Path | nn.Module,
    text: Text,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
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
    null: str | Sequence[nn.Module] = "untrained",
    copies: int = COPIES,
    seed: int = 0,
    device: str = "auto",
    dtype: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> NeuronsResult:
    """Find the neurons that answer to unrelated patterns, and the contexts that show it.

    One pass over the text keeps the windows that activate each neuron most; what the query token attends
    to in them is clustered, and scored against shuffled contexts. The same is done with untrained networks
    of the model's shape, since a network that has learned nothing is selective too; each takes as long.

    Args:
        model: see ``joma.instruments.reading.loading.load_model``.
        tokenizer: see ``joma.instruments.reading.loading.load_model``.
        revision: see ``joma.instruments.reading.loading.load_model``.
        device: see ``joma.instruments.reading.loading.load_model``.
        dtype: see ``joma.instruments.reading.loading.load_model``.
        trust_remote_code: see ``joma.instruments.reading.loading.load_model``.
        text: see ``joma.instruments.reading.texts.windows``.
        column: see there.
        length: of the windows, by default 128 tokens; see there.
        tokens: at most, by default 50,000; see there.
        batch_tokens: see there.
        layers: numbers of those to look at; all by default.
        neurons: numbers of those to look at, meant in each layer; all by default.
        top: contexts kept for each neuron.
        smallest: contexts that make a pattern; at most half of ``top``.
        show: neurons whose contexts are written out: the largest scores, or the first of ``neurons``.
        null: ``untrained``: networks of the model's shape with weights drawn anew stand beside it (see
            ``joma.instruments.reading.untrained.untrained_copy``); ``none``; or such networks themselves.
        copies: untrained networks that are drawn; below 3 nothing can be said of learning.
        seed: of the shuffles, and of the first untrained network.
        progress: shows a bar.

    Raises:
        InputError: a model, text or setting that cannot be used as it is.
        UnfinishedError: out of memory.

    Examples:
        >>> model = Decoder(50, layers=1, width=16, hidden=8, heads=2).eval()
        >>> text = np.random.default_rng(0).integers(0, 50, 400)
        >>> found = joma.neurons(model, text, length=20, null="none")
        >>> sorted(found.tables)[:3]
        ['context_tokens', 'contexts', 'layers']
    """
    if smallest < 2 or top < 2 * smallest:
        raise InputError(
            f"top = {top} contexts and smallest = {smallest}: two patterns take twice smallest (at least 2) "
            "contexts; raise top, or lower smallest."
        )
    if show < 1:
        raise InputError(f"show = {show} in probe_neurons; give at least 1.")
    check_null(null)
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

    def tables_of(subject: nn.Module, shown: int) -> dict[str, pandas.DataFrame]:
        found = find_neurons(
            subject,
            pieces,
            layers=layers,
            neurons=neurons,
            top=top,
            special=getattr(loaded.tokenizer, "all_special_ids", None) or (),
            seed=seed,
            progress=progress,
        )
        return superposition_tables(
            found,
            piece_of(loaded.tokenizer),
            embedding=embedding_matrix(subject),
            neurons=neurons,
            smallest=smallest,
            show=shown,
            seed=seed,
        )

    import pandas

    tables = tables_of(loaded.model, show)
    beside: list[dict[str, pandas.DataFrame]] = []
    try:
        for other in untrained_copies(loaded.model, null, count=copies, seed=seed):
            beside.append(tables_of(other, 1))
    except InputError as error:
        missing = pandas.DataFrame([{"block": "untrained copies", "reason": str(error)}])
        tables["not_measured"] = pandas.concat([tables.get("not_measured"), missing], ignore_index=True)
    else:
        tables |= {f"untrained_{name}": _below(beside, name) for name in ("neurons", "layers") if beside}
    tables["model"] = _describe(loaded, pieces, top)
    return NeuronsResult(
        NeuronsSettings(reading=ReadingSettings(model=str(loaded.name)), copies=copies, seed=seed), tables
    )


def _below(copies: Sequence[dict[str, pandas.DataFrame]], name: str) -> pandas.DataFrame:
    """A table of each copy, one below the other."""
    import pandas

    return pandas.concat([t[name].assign(copy=n) for n, t in enumerate(copies)], ignore_index=True)


def _describe(loaded: LoadedModel, pieces: Windows, top: int) -> pandas.DataFrame:
    import pandas

    described = {
        "model": loaded.name,
        "tokens": pieces.tokens,
        "windows": len(pieces.pieces),
        "window": pieces.length,
        "contexts_per_neuron": top,
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
    }
    return pandas.DataFrame([described])


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
    """Score what was found and write it out: the tables of ``Neurons`` but for ``model``."""
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


def piece_of(tokenizer: Tokenizer | None) -> Callable[[int], str]:
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

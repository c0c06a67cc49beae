"""Contexts of every neuron, in a trained network and in the same one before training."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pandas as pd
from torch import nn

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.data.corpora import load_corpus
from joma.experiments.joma_paper.fig10 import SCORES, Fig10
from joma.experiments.shared.decoders import gather, tokens_of
from joma.instruments.neurons.find import find_neurons
from joma.instruments.neurons.meaning import embedding_matrix
from joma.instruments.neurons.probe import piece_of, superposition_tables
from joma.instruments.reading.loading import load_model
from joma.instruments.reading.texts import Windows, windows
from joma.instruments.reading.untrained import untrained_copy
from joma.models.decoder import Decoder
from joma.training.loop import Recipe, reproducible, train

_CHARACTERS_PER_TOKEN = 10


class _Subject(NamedTuple):
    """A network, itself before training, what both read, and how a token of it is shown."""

    trained: nn.Module
    untrained: nn.Module
    pieces: Windows
    piece: Callable[[int], str]
    special: tuple[int, ...]


def run(settings: Fig10, progress: Progress) -> dict[str, pd.DataFrame]:
    """The trained network first, then the untrained one, on the same windows; and so for each seed."""
    subject = _given_subject(settings) if settings.model else _trained_here(settings, progress)
    description = {
        "model": settings.model or "decoder trained here",
        "parameters": sum(p.numel() for p in subject.trained.parameters()),
        "tokens": subject.pieces.tokens,
        "windows": len(subject.pieces.pieces),
        "window": subject.pieces.length,
    }
    tables = _both(settings, subject, progress) | {"model": pd.DataFrame([description])}
    others = range(settings.seed + 1, settings.seed + settings.seeds)
    if others:
        parts = progress.parts({f"seed-{seed}": partial(_scores, settings, seed) for seed in others})
        tables["seeds"] = gather(parts)
    return tables


def _scores(settings: Fig10, seed: int, progress: Progress) -> pd.DataFrame:
    """Scores and nulls of another seed's networks, one below the other; of a model that is there, only an
    untrained one has another seed."""
    of_seed = dataclasses.replace(settings, seed=seed)
    if settings.model:
        subject = _given_subject(of_seed)
        tables = _untrained_tables(_tables(of_seed, subject, subject.untrained, progress))
    else:
        tables = _both(of_seed, _trained_here(of_seed, progress), progress)
    parts = [tables[name].assign(seed=seed, table=name) for name in SCORES if name in tables]
    return pd.concat(parts, ignore_index=True)


def _both(settings: Fig10, subject: _Subject, progress: Progress) -> dict[str, pd.DataFrame]:
    """The tables of the trained network, and the scores of the untrained one."""
    beside = _untrained_tables(_tables(settings, subject, subject.untrained, progress))
    return _tables(settings, subject, subject.trained, progress) | beside


def _untrained_tables(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {f"untrained_{name}": tables[name] for name in ("neurons", "null", "layers")}


def _tables(
    settings: Fig10, subject: _Subject, model: nn.Module, progress: Progress
) -> dict[str, pd.DataFrame]:
    found = find_neurons(
        model,
        subject.pieces,
        top=settings.top,
        special=subject.special,
        seed=settings.seed,
        progress=progress,
    )
    return superposition_tables(
        found,
        subject.piece,
        embedding=embedding_matrix(model),
        smallest=settings.smallest,
        show=settings.shown,
        seed=settings.seed,
    )


def _trained_here(settings: Fig10, progress: Progress) -> _Subject:
    """A decoder trained on the corpus, which knows no padding: windows of one length, spread evenly."""
    text = tokens_of(settings.corpus, "words", settings.vocabulary_size)
    whole = len(text.training) // settings.window * settings.window
    pieces = windows(text.training[:whole], length=settings.window, tokens=settings.tokens, batch_tokens=4096)
    recipe = Recipe(
        steps=settings.steps, learning_rate=settings.learning_rate, length=settings.window, seed=settings.seed
    )
    with reproducible(settings.seed):
        model = Decoder(
            text.vocabulary_size,
            layers=settings.layers,
            width=settings.width,
            hidden=settings.hidden,
            heads=settings.heads,
            longest=settings.window,
        )
        untrained = copy.deepcopy(model).eval()
        train(
            model,
            text,
            recipe,
            measure=lambda model, step: [],
            measure_at=(),
            progress=progress,
            label=f"fig10: training, seed {settings.seed}",
            checkpoints=progress.checkpoint_folder(f"decoder-{settings.seed}"),
        )
    # <unk> is the first word: it stands for thousands, and tells of no pattern.
    return _Subject(model.eval(), untrained, pieces, lambda number: f" {text.words[number]}", (0,))


def _given_subject(settings: Fig10) -> _Subject:
    """A model that is there, beside the same architecture with random weights."""
    loaded = load_model(settings.model)
    if loaded.tokenizer is None:
        raise InputError(f"fig10: {settings.model} has no tokenizer; give a folder that holds one.")
    corpus = load_corpus(settings.corpus)
    pieces = windows(
        # Enough to choose from, without the tokens of a whole large corpus.
        corpus.training[: _CHARACTERS_PER_TOKEN * settings.tokens],
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        length=settings.window,
        tokens=settings.tokens,
        batch_tokens=1024,
    )
    untrained = untrained_copy(loaded.model, seed=settings.seed)
    special = tuple(loaded.tokenizer.all_special_ids)
    return _Subject(loaded.model, untrained, pieces, piece_of(loaded.tokenizer), special)

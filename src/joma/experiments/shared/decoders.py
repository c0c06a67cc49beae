"""Decoders trained on a text, for the experiments whose settings are ``DecoderGrid``."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pandas as pd

from joma.core.progress import Progress
from joma.data.corpora import load_corpus
from joma.data.text import Batches, TokenText, tokenize, validation_windows
from joma.experiments.shared.decoder_settings import DecoderGrid, run_name
from joma.instruments.reading.loading import checked_device
from joma.models.decoder import Decoder
from joma.training.evaluation import HeldOutText
from joma.training.loop import Recipe, Rows, reproducible, train


@functools.lru_cache(maxsize=1)
def tokens_of(corpus: str, tokenizer: str, vocabulary_size: int | None) -> TokenText:
    """A corpus in tokens, once per process."""
    return tokenize(load_corpus(corpus), tokenizer=tokenizer, vocabulary_size=vocabulary_size)


def read_text(settings: DecoderGrid) -> TokenText:
    """The text of an experiment; call it once before processes are started, so that they find no error.

    Raises:
        InputError: no such corpus, or too short a text for a minibatch or a held-out window.
    """
    text = tokens_of(settings.corpus, settings.tokenizer, settings.vocabulary_size)
    Batches(text.training, settings.batch, settings.length, settings.order, settings.seed)
    validation_windows(text.validation, length=settings.length, most=settings.windows)
    return text


def held_out_text(settings: DecoderGrid, text: TokenText) -> HeldOutText:
    """The held-out windows, ready to measure a decoder on."""
    device = str(checked_device(settings.device))
    return HeldOutText(text, length=settings.length, most_windows=settings.windows, device=device)


def train_decoder(
    settings: DecoderGrid,
    depth: int,
    seed: int,
    progress: Progress,
    *,
    text: TokenText,
    measure: Callable[[Decoder, int], Rows],
    prepare: Callable[[Decoder], None] | None = None,
    variant: str = "",
    resumable: bool = True,
) -> pd.DataFrame:
    """Train one decoder and measure it on the way: the rows of ``measure`` with run, depth and seed.

    Args:
        settings: what is trained, and how.
        depth: layers.
        seed: of initial weights, dropout and the order of the windows.
        progress: bar, and place of the checkpoints.
        text: what is read.
        prepare: what is done to the new decoder, before it is trained (or its checkpoint is loaded).
        measure: model and step -> rows; called at ``settings.measured_steps()``.
        variant: what is different about this run, for its name.
        resumable: not, where ``measure`` changes the model's parts.
    """
    name = run_name(depth, seed, variant)
    recipe = Recipe(
        steps=settings.steps,
        learning_rate=settings.rate,
        optimizer=settings.optimizer,
        clip=settings.clip,
        batch=settings.batch,
        length=settings.length,
        order=settings.order,
        restart_optimizer=settings.restart_optimizer,
        autocast=settings.precision == "bfloat16",
        attention_ratio=settings.attention_ratio,
        seed=seed,
    )
    with reproducible(seed):
        model = Decoder(
            text.vocabulary_size,
            layers=depth,
            width=settings.width,
            hidden=settings.hidden,
            heads=settings.heads,
            dropout=settings.dropout,
            longest=settings.length,
        )
        model.to(checked_device(settings.device))  # its weights are those of every device
        if prepare is not None:
            prepare(model)
        rows = train(
            model,
            text,
            recipe,
            measure=measure,
            measure_at=settings.measured_steps(),
            progress=progress,
            label=f"{settings.name()}: {name}",
            checkpoints=progress.checkpoint_folder(name) if resumable else None,
        )
    return rows.assign(run=name, depth=depth, seed=seed)


def gather(parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The tables of all runs as one, in the order of their names."""
    return pd.concat([parts[name] for name in sorted(parts)], ignore_index=True)

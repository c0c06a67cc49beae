"""Decoders, and what ``joma.sparsity`` finds in them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.beyond.contextual_sparsity import ContextualSparsity
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, read_text, train_decoder
from joma.instruments.sparsity.find import sparsity
from joma.models.decoder import Decoder
from joma.training.loop import Rows


def run(settings: ContextualSparsity, progress: Progress) -> dict[str, pd.DataFrame]:
    """Table ``sets``, one part a decoder."""
    read_text(settings)
    progress.note_device("cpu", "float32")
    parts = progress.parts(
        {run_name(*cell): partial(_one_decoder, settings, *cell) for cell in settings.trainings()}
    )
    return {"sets": gather(parts)}


def _one_decoder(settings: ContextualSparsity, depth: int, seed: int, progress: Progress) -> pd.DataFrame:
    text = read_text(settings)
    held_out = np.asarray(text.validation)[: settings.tokens]

    def measure(model: Decoder, step: int) -> Rows:
        found = sparsity(
            model,
            held_out,
            length=settings.length,
            tokens=settings.tokens,
            epsilon=settings.epsilon,
            seed=seed,
            progress=Progress(quiet=True),
        )
        return [{**row, "step": step} for row in found.tables["sets"].to_dict("records")]

    found = train_decoder(settings, depth, seed, progress, text=text, measure=measure)
    return found.assign(network=np.where(found["step"] == 0, "untrained", "trained"))

"""Decoders at every ratio of rates and seed, the control, and the dips and rebounds of their attention."""

from __future__ import annotations

import dataclasses
from functools import partial

import pandas as pd

from joma.core.progress import Progress
from joma.experiments.beyond.attention_rate import AttentionRate, all_name, attention_name
from joma.experiments.shared.block_rates import block_rates
from joma.experiments.shared.curves import COLUMNS, find_bounces
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, held_out_text, read_text, train_decoder
from joma.models.decoder import Decoder
from joma.training.loop import Rows

KEPT = ("attention_entropy", "validation_loss", "kappa", "kappa_share")


def run(settings: AttentionRate, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``curves`` and ``bounces``."""
    read_text(settings)
    runs = {}
    for depth, seed in settings.trainings():
        for variant, cell in variants(settings).items():
            short = f"ratio-{cell.attention_ratio:g}-rate-{cell.rate:g}"
            runs[run_name(depth, seed, short)] = partial(_train_one, cell, depth, seed, variant, short)
    curves = gather(progress.parts(runs))
    return {"curves": curves, "bounces": find_bounces(curves, settings.measure_every, pooled=False)}


def variants(settings: AttentionRate) -> dict[str, AttentionRate]:
    """What is trained, by its name: each ratio, and the control."""
    faster = settings.control * settings.learning_rate
    return {
        **{
            attention_name(ratio): dataclasses.replace(settings, ratios=(ratio,)) for ratio in settings.ratios
        },
        all_name(settings.control): dataclasses.replace(settings, ratios=(1.0,), learning_rate=faster),
    }


def _train_one(
    cell: AttentionRate, depth: int, seed: int, variant: str, name: str, progress: Progress
) -> pd.DataFrame:
    text = read_text(cell)
    held_out = held_out_text(cell, text)

    def measure(model: Decoder, step: int) -> Rows:
        measured = held_out.measure(model, step)
        measured += block_rates(model, held_out.inputs, step, law=False, seed=seed)
        return [row for row in measured if row["metric"] in KEPT]

    rows = train_decoder(cell, depth, seed, progress, text=text, measure=measure, variant=name)
    return rows.assign(learning_rate=cell.rate, variant=variant, dtype=cell.precision)[COLUMNS]

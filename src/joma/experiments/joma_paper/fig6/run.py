"""Training at every depth and seed, and the dips and rebounds of each curve."""

from __future__ import annotations

from functools import partial

import pandas as pd
import torch

from joma.core.progress import Progress
from joma.experiments.joma_paper.fig6 import Fig6
from joma.experiments.shared.block_rates import block_rates
from joma.experiments.shared.curves import REAL, cost_of, find_bounces, train_curves
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, held_out_text, read_text
from joma.experiments.shared.recorded import compare, read_record
from joma.measures.ranks.stable_rank import stable_rank_estimate
from joma.models.decoder import Decoder
from joma.training.loop import Rows

SHUFFLED, UNTRAINED_QK = "shuffled words", "W_Q and W_K left alone"
VARIANTS = {REAL: "", SHUFFLED: "shuffled", UNTRAINED_QK: "untrained-qk"}
"""Of a run -> its name."""
RECORDED_RATE = 1e-4
"""Fig. 6's, among the rates that the authors recorded."""
GATHERED = ("curves",)
"""What ``tables`` needs of the cells of a sweep."""


def run(settings: Fig6, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``curves`` (every measurement), ``bounces`` (each curve's dip and rebound) and ``authors``."""
    if settings.recorded:
        return tables(settings, {"curves": read_record(settings.recorded, learning_rates=[RECORDED_RATE])})
    read_text(settings)
    runs = {
        run_name(cell.depth, cell.seed, name): partial(_train_one, cell, variant)
        for cell in settings.cells()
        for variant, name in VARIANTS.items()
        if settings.nulls or variant == REAL
    }
    return tables(settings, {"curves": gather(progress.parts(runs))})


def tables(settings: Fig6, found: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """All tables, from the ``curves`` of all cells."""
    curves = found["curves"]
    every = 1 if settings.recorded else settings.measure_every
    record = read_record(settings.authors_curves) if settings.authors_curves else curves.iloc[:0]
    return {
        "curves": curves,
        "bounces": find_bounces(curves, every, pooled=settings.pooled),
        "authors": compare(curves[curves["variant"] == REAL], record, settings.seed),
    }


def _train_one(cell: Fig6, variant: str, progress: Progress) -> pd.DataFrame:
    windows = held_out_text(cell, read_text(cell)).inputs
    began: list[torch.Tensor] = []

    def prepare(model: Decoder) -> None:
        began.extend(weight.clone() for weight in model.lower_mlp_weights())
        if variant == UNTRAINED_QK:
            model.keep_queries_and_keys()

    def also(model: Decoder, step: int) -> Rows:
        pairs = list(zip(model.lower_mlp_weights(), began, strict=True))
        rows: Rows = [
            {
                "step": step,
                "layer": layer,
                "head": None,
                "metric": "stable_rank_of_change",
                "value": stable_rank_estimate(weight - first).value,
                "unit": "",
            }
            for layer, (weight, first) in enumerate(pairs if step else [])
        ]
        if variant != REAL:
            return rows
        return rows + block_rates(model, windows, step, law=step == cell.steps, seed=cell.seed)

    return train_curves(
        cell,
        progress,
        name=VARIANTS[variant],
        variant=variant,
        also=also,
        prepare=prepare,
        shuffled=variant == SHUFFLED,
    )


def cost(cell: Fig6) -> float:
    """Seconds that a cell takes, its nulls included."""
    windows = held_out_text(cell, read_text(cell)).inputs

    def also(model: Decoder, step: int) -> Rows:
        return block_rates(model, windows, step, law=False, seed=cell.seed)

    return cost_of(cell, also) * (len(VARIANTS) if cell.nulls else 1)

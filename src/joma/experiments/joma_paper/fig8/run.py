"""Training at every depth, rate and seed; what each cell did, and whether rebound and loss go together."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.joma_paper.fig8 import Fig8
from joma.experiments.shared.curves import REAL, cost_of, find_bounces, train_curves
from joma.experiments.shared.decoder_settings import rate_name, run_name
from joma.experiments.shared.decoders import gather, read_text
from joma.experiments.shared.recorded import compare, read_record

COLLAPSED = 0.1
"""Of its start: an entropy that ends below is a collapse."""
SIGNIFICANT = 0.05
BOUNCES, COLLAPSES, FALLS, STAYS = "bounces", "collapses", "falls", "stays"
GATHERED = ("curves",)
"""What ``tables`` needs of the cells of a sweep."""


def run(settings: Fig8, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``curves``, ``bounces``, ``decoders`` (a row each) and ``authors``."""
    if settings.recorded:
        return tables(settings, {"curves": read_record(settings.recorded)})
    read_text(settings)
    runs = {
        run_name(cell.depth, cell.seed, rate_name(cell.rate)): partial(_train_one, cell)
        for cell in settings.cells()
    }
    return tables(settings, {"curves": gather(progress.parts(runs))})


def tables(settings: Fig8, found: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """All tables, from the ``curves`` of all cells."""
    curves = found["curves"]
    bounces = find_bounces(curves, 1 if settings.recorded else settings.measure_every, pooled=settings.pooled)
    record = read_record(settings.authors_curves) if settings.authors_curves else curves.iloc[:0]
    return {
        "curves": curves,
        "bounces": bounces,
        "decoders": _decoders(curves, bounces),
        "authors": compare(curves, record, settings.seed),
    }


def _train_one(cell: Fig8, progress: Progress) -> pd.DataFrame:
    return train_curves(cell, progress, name=rate_name(cell.rate))


def _decoders(curves: pd.DataFrame, bounces: pd.DataFrame) -> pd.DataFrame:
    """A row per decoder: what the entropy of its top layer did, and its lowest and last held-out loss."""
    is_top = (bounces["layer"] == bounces["depth"] - 1) & (bounces["metric"] == "attention_entropy")
    top = bounces[is_top & (bounces["variant"] == REAL)].set_index("run")
    losses = curves[curves["metric"] == "validation_loss"]
    loss = losses.groupby("run")["value"]
    at_dip = losses.join(top["dip_step"], on="run").query("step >= dip_step").groupby("run")["value"].first()
    found = top[
        ["depth", "learning_rate", "seed", "start", "end", "dip_step", "depth_of_dip", "dip_probability"]
    ].assign(
        rebound=top["rebound"],
        rebound_null=top["rebound_null"],
        rebound_probability=top["rebound_probability"],
        lowest_loss=loss.min(),
        last_loss=loss.last(),
        dip_loss=at_dip,
    )
    collapsed = found["end"] < COLLAPSED * found["start"]
    # Where runs are judged together, each must also move further than their mean had to.
    rises = (found["rebound_probability"] < SIGNIFICANT) & (found["rebound"] > found["rebound_null"])
    falls = (found["dip_probability"] < SIGNIFICANT) & (found["depth_of_dip"] > top["dip_null"])
    found["course"] = np.select([collapsed, rises & falls, falls], [COLLAPSES, BOUNCES, FALLS], STAYS)
    return found.reset_index().sort_values(["depth", "learning_rate", "seed"], ignore_index=True)


def cost(cell: Fig8) -> float:
    """Seconds that a cell takes."""
    return cost_of(cell)

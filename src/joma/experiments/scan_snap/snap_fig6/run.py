"""Every cell with every seed, and the authors' table where one is given."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.data.next_token import graded_tokens
from joma.dynamics.token_sgd import token_sgd
from joma.experiments.scan_snap.snap_fig6 import CELL, SnapFig6
from joma.experiments.scan_snap.snap_fig6.authors import authors_classes, authors_start
from joma.theory.scan_snap.equations import distinct_entropy

PAGE = {
    "last_tokens": "last_tokens",
    "learning_rate_z": "eta_z",
    "ratio_y_over_z": "ratio",
    "entropy_mean_nats": "authors_mean",
    "entropy_std": "authors_std",
    "seeds": "authors_seeds",
}
"""Columns that a table of the authors' results must have -> their names here."""


def run(settings: SnapFig6, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every cell with every seed: all pairs of rates of one seed at once."""
    authors = _authors(settings)
    seeds = [settings.seed + 1 + k for k in range(settings.seeds)]
    jobs = [(last, seed) for last in settings.last_tokens for seed in seeds]
    entropy = pd.concat(
        [
            progress.part(f"last{last}-seed{seed}", partial(_runs, settings, last, seed))
            for last, seed in progress.track(jobs, "snap_fig6")
        ],
        ignore_index=True,
    )
    end = entropy[entropy["step"] == settings.steps]
    cells = end.groupby(CELL, as_index=False)["value"].agg(mean="mean", std="std", seeds="count")
    cells["standard_error"] = cells["std"] / cells["seeds"] ** 0.5
    cells["unit"] = "nats"
    return {"entropy": entropy, "cells": cells, "authors": authors}


def _runs(settings: SnapFig6, last_tokens: int, seed: int) -> pd.DataFrame:
    """Entropies of all pairs of rates, one seed."""
    data = graded_tokens(last_tokens=last_tokens)
    pairs = [(eta_z, ratio) for eta_z in settings.eta_z for ratio in settings.ratios]
    eta_z, ratio = np.array(pairs, dtype=np.float64).T
    authors = settings.streams == "authors"
    runs = token_sgd(
        data,
        eta_y=eta_z * ratio,
        eta_z=eta_z,
        seeds=[seed],
        steps=settings.steps,
        batch=settings.batch,
        length=settings.length,
        momentum=settings.momentum,
        start=authors_start(data, seed) if authors else "uniform",
        classes=authors_classes(data, seed, settings.steps, settings.batch)[None] if authors else None,
        record=(0,),
    )
    distinct = data.require_distinct("snap_fig6")
    values = [distinct_entropy(runs.mass(k)[0], distinct).mean(axis=-1) for k in range(2)]
    return pd.DataFrame(
        {
            "run": seed,
            "last_tokens": last_tokens,
            "next_tokens": data.classes,
            "eta_z": np.tile(eta_z, 2),
            "ratio": np.tile(ratio, 2),
            "step": np.repeat(runs.steps, len(pairs)),
            "metric": "entropy over distinct tokens",
            "value": np.concatenate(values),
            "unit": "nats",
            "dtype": "float32",
        }
    )


def _authors(settings: SnapFig6) -> pd.DataFrame:
    """The given table under this experiment's column names; empty where none is given."""
    if not settings.authors_table:
        return pd.DataFrame(columns=list(PAGE.values()), dtype=float)
    try:
        table = pd.read_csv(settings.authors_table)
    except (OSError, ValueError) as error:
        raise InputError(
            f"snap_fig6: setting authors_table = {settings.authors_table!r} cannot be read ({error}); give a "
            "CSV file or leave it empty."
        ) from error
    missing = sorted(set(PAGE) - set(table.columns))
    if missing:
        raise InputError(
            f"snap_fig6: authors_table {settings.authors_table!r} lacks the columns {', '.join(missing)}; it "
            f"needs {', '.join(PAGE)}."
        )
    return table.rename(columns=PAGE)[list(PAGE.values())].astype(float)

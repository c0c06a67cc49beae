"""One table from the looks of several processes, each of which saw its own share of the batch."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pandas as pd
import torch.distributed as dist

from joma.instruments.monitor.look import MAXIMA, RESIDUAL

T = TypeVar("T")

_KEYS = ["step", "layer", "module", "call", "head", "metric", "unit"]


def is_first() -> bool:
    """Whether this process is the one that writes: the only one, or rank 0."""
    return not _several() or dist.get_rank() == 0


def of_first(value: T) -> T:
    """What the first process has; every process of the default group must call it."""
    if not _several():
        return value
    values: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values[0]


def over_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of all processes as one: means weighted by their counts, maxima of maxima.

    Every process of the default group must call it, whatever it saw: one that saw nothing (no valid row, a
    look that failed) hands in no rows, and nobody waits for it. Without processes the rows are returned.
    """
    if not _several():
        return rows
    parts: list[pd.DataFrame] = [rows] * dist.get_world_size()
    dist.all_gather_object(parts, rows)
    parts = [part for part in parts if len(part)]
    if not parts:
        return rows
    table = pd.concat(parts, ignore_index=True)
    value, count = table["value"].astype(float), table["count"].astype(float)
    squared = table["metric"].isin(RESIDUAL)
    table["total"] = np.where(squared, value**2, value) * count
    table["total"] = table["total"].where(count > 0, 0.0)
    table["most"] = value
    # A sum leaves out what is no number; a mean of which some rows are none is none.
    table["none"] = (value.isna() & (count > 0)).astype(float)
    joined = table.groupby(_KEYS, sort=False, dropna=False).agg(
        total=("total", "sum"), count=("count", "sum"), most=("most", "max"), none=("none", "max")
    )
    joined = joined.reset_index()
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = joined["total"] / joined["count"].where((joined["count"] > 0) & (joined["none"] == 0))
    mean = mean.where(~joined["metric"].isin(RESIDUAL), np.sqrt(mean))
    joined["value"] = mean.where(~joined["metric"].isin(MAXIMA), joined["most"])
    return joined[list(rows.columns) or [*_KEYS, "value", "count"]]


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

"""One table from the looks of several processes, each of which saw its own share of the batch."""

from __future__ import annotations

import datetime
import itertools
from typing import TypeVar

import numpy as np
import pandas as pd
import torch.distributed as dist

from joma.instruments.monitor.guard import Guard
from joma.instruments.monitor.measuring.look import MAXIMA, RESIDUAL

T = TypeVar("T")

_KEYS = ["step", "stack", "layer", "module", "call", "head", "metric", "unit"]


_PATIENCE = 20.0
"""Seconds for which a monitor waits at its start for those of the other processes."""
_numbers = itertools.count()


class Processes:
    """The processes whose monitors look together: all of the default group, or this one alone.

    Each says in the group's store that it is there. Where one is not within 20 seconds, there is a monitor
    in some processes only, and nobody waits for the others: whoever looks, looks alone.
    """

    def __init__(self, guard: Guard, patience: float = _PATIENCE) -> None:
        self.together = _several()
        """Whether each of several processes has a monitor."""
        if self.together:
            self._meet(patience, guard)

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes: the only one, or rank 0."""
        return not _several() or dist.get_rank() == 0

    def _meet(self, patience: float, guard: Guard) -> None:
        store = dist.distributed_c10d.PrefixStore(
            f"joma-monitor-{next(_numbers)}", dist.distributed_c10d._get_default_store()
        )
        rank, size = dist.get_rank(), dist.get_world_size()
        store.set(f"{rank}", "here")
        if rank == 0:
            try:
                store.wait([f"{other}" for other in range(size)], datetime.timedelta(seconds=patience))
            except dist.DistError:
                self.together = False
            store.set("decision", "together" if self.together else "alone")
        else:
            try:
                store.wait(["decision"], datetime.timedelta(seconds=2 * patience))
                self.together = store.get("decision") == b"together"
            except dist.DistError:
                self.together = False
        if not self.together:
            guard.say(
                "the monitor",
                f"not every one of the {size} processes has a monitor, so that it sees the share of the "
                f"batch of process {rank} only; build it in every process.",
            )

    def of_first(self, value: T) -> T:
        """What the first process has; every process that looks together must call it."""
        if not self.together:
            return value
        values: list[T] = [value] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values[0]

    def mean(self, value: float) -> float:
        """The mean over the processes; every one that looks together must call it."""
        if not self.together:
            return value
        values = [value] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return sum(values) / len(values)

    def join(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of all as one (``over_ranks``)."""
        return over_ranks(rows) if self.together else rows


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

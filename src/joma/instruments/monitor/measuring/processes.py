"""One table from the looks of several processes, each of which saw its own share of the batch."""

from __future__ import annotations

import contextlib
import itertools
import time
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
_LATEST = 300.0
"""Seconds for which a look waits for those of the other processes: one may write a checkpoint meanwhile."""
_numbers = itertools.count()


class Processes:
    """The processes whose monitors look together: all of the default group, or this one alone.

    Each says in the group's store that it is there, and what it watches how often. Where one is not within
    20 seconds, or watches something else, and where one does not come to a look within five minutes, nobody
    waits for the others from there on: whoever looks, looks alone.

    Args:
        guard: says so.
        watched: what is watched how often, in words.
    """

    def __init__(self, guard: Guard, watched: str = "") -> None:
        self.together = _several()
        """Whether each of several processes has a monitor."""
        self._guard = guard
        self._turns = itertools.count()
        if self.together:
            self._number = next(_numbers)
            self._agree(
                watched,
                _PATIENCE,
                "has a monitor of this model at this cadence",
                "build it in every process, with the same settings",
            )

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes: the only one, or rank 0."""
        return not _several() or dist.get_rank() == 0

    def _agree(self, said: str, patience: float, wanted: str, advice: str) -> None:
        """Whether all processes come here and say the same; where not, nobody waits for another again."""
        store = dist.distributed_c10d.PrefixStore(
            f"joma-monitor-{self._number}-{next(self._turns)}", dist.distributed_c10d._get_default_store()
        )
        rank, size = dist.get_rank(), dist.get_world_size()
        names = [f"{other}" for other in range(size)]
        store.set(f"{rank}", said)
        if rank == 0:
            came = _come(store, names, patience) and {store.get(name).decode() for name in names} == {said}
            store.set("decision", "together" if came else "alone")
        else:
            came = _come(store, ["decision"], 2 * patience) and store.get("decision") == b"together"
        if came:
            with contextlib.suppress(Exception):  # not every store can forget
                store.delete_key(f"{rank}")
        self.together = came
        if not came:
            self._guard.say(
                "the monitor",
                f"not every one of the {size} processes {wanted}, so that it sees the share of the batch of "
                f"process {rank} only; {advice}.",
            )

    def _gather(self, value: T) -> list[T]:
        """What every process has, this one's alone where they do not look together."""
        if self.together:
            minutes = f"{_LATEST / 60:.2g} minutes"
            self._agree("", _LATEST, f"came to this look within {minutes}", "call step() in every process")
        if not self.together:
            return [value]
        values: list[T] = [value] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    def of_first(self, value: T) -> T:
        """What the first process has; every process that looks together must call it."""
        return self._gather(value)[0]

    def mean(self, value: float) -> float:
        """The mean over the processes; every one that looks together must call it."""
        values = self._gather(value)
        return sum(values) / len(values)

    def join(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of all as one (``over_ranks``); every process that looks together must call it."""
        return over_ranks(self._gather(rows))


def _come(store: dist.distributed_c10d.Store, names: list[str], patience: float) -> bool:
    """Whether all of these are in the store in time. To wait in the store would keep others out of it."""
    end, pause = time.monotonic() + patience, 1e-3
    while not store.check(names):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


def over_ranks(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all processes as one: means weighted by their counts, maxima of maxima.

    One that saw nothing (no valid row, a look that failed) hands in no rows. The rows of one alone are
    returned as they are.
    """
    rows = parts[0]
    if len(parts) == 1:
        return rows
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

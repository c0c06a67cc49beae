"""Where a run's parts are computed: one interface, :class:`joma.progress.Executor`, for every place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import joblib

T = TypeVar("T")


def local_processes(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """In so many processes of this machine."""
    # Interrupted, the pool's own bookkeeping process would remark on what was left behind.
    ignored = "ignore:resource_tracker:UserWarning"
    before = os.environ.get("PYTHONWARNINGS", "")
    if ignored not in before.split(","):
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, ignored]))
    jobs = [joblib.delayed(_call)(call) for call in calls]
    found: list[T] = joblib.Parallel(n_jobs=workers, batch_size=1, pre_dispatch="all")(jobs)
    return found


def _call(call: Callable[[], T]) -> T:
    return call()

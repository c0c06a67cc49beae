"""Where a run's parts are computed: one interface, :class:`joma.progress.Executor`, for every place."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import joblib

T = TypeVar("T")
_LOOKED_AFTER = 0.2
"""Seconds between two looks at whether the process that asked is still there."""


def local_processes(calls: Sequence[Callable[[], T]], workers: int) -> list[T]:
    """In so many processes of this machine."""
    # Interrupted, the pool's own bookkeeping process would remark on what was left behind.
    ignored = "ignore:resource_tracker:UserWarning"
    before = os.environ.get("PYTHONWARNINGS", "")
    if ignored not in before.split(","):
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, ignored]))
    jobs = [joblib.delayed(_call)(call) for call in calls]
    with joblib.parallel_config("loky", initializer=_end_with, initargs=(os.getpid(),)):
        found: list[T] = joblib.Parallel(n_jobs=workers, batch_size=1, pre_dispatch="all")(jobs)
    return found


def _end_with(parent: int) -> None:
    """End this process with the one that asked for its work, at work or idle (which would stay for minutes).

    Whoever continues a run that was killed must find nobody else writing there, and whoever waits for the end
    of its output must not wait for ever.
    """

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKED_AFTER)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _call(call: Callable[[], T]) -> T:
    return call()

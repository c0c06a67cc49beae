"""The workers of a dask cluster, and so of all on which dask's own packages start them: Slurm, PBS, ..."""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from distributed import Client, KilledWorker, as_completed

from joma.core.errors import InputError, JomaError, first_line
from joma.core.progress import Executor, LostCall
from joma.runs.executors.elsewhere import compute, versions

T = TypeVar("T")

_REACHED = 15
"""Seconds for a scheduler to answer."""
_WORKERS = 120
"""Seconds for its first worker to come."""


def connect(place: str) -> Executor:
    """The executor for the scheduler at HOST:PORT; it is reached when there is something to compute."""
    return functools.partial(_on_dask, place)


def _on_dask(
    place: str, calls: Sequence[Callable[[], T]], workers: int
) -> Generator[tuple[int, T | LostCall], None, None]:
    """As ``joma.core.progress.Executor`` says; how many at once is the cluster's to say.

    Raises:
        InputError: there is no scheduler, it has no worker, or one with other versions.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it has to say is said here
    try:
        client = Client(f"tcp://{place}", timeout=_REACHED, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no dask scheduler answers at {place} ({first_line(error)}); start one with 'dask scheduler', "
            f"or look at its address."
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_WORKERS)
        except TimeoutError:
            raise InputError(
                f"the dask scheduler at {place} has no worker after {_WORKERS} s; start some with 'dask "
                f"worker tcp://{place} --nthreads 1'."
            ) from None
        asked_by = versions()

        def unpack(work: bytes) -> T:
            """Sent as it stands here: a worker that lacks joma says so, where it would lose its scheduler
            over a name that it cannot read."""
            outcome: T = pickle.loads(work)()
            return outcome

        # Not pure: the same call computed again is meant to be computed again.
        futures = [
            client.submit(unpack, pickle.dumps(functools.partial(compute, call, asked_by)), pure=False)
            for call in calls
        ]
        numbers = {future.key: number for number, future in enumerate(futures)}
        try:
            for future in as_completed(futures, loop=client.loop):
                yield numbers[future.key], _outcome(future)
        finally:
            client.cancel(futures, force=True)


def _outcome(future: Any) -> Any:
    status = future.status
    if status == "finished":
        return future.result()
    if status != "error":
        return LostCall("the scheduler let go of it")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return LostCall("several workers died over it")
    if isinstance(error, JomaError):
        raise error
    if isinstance(error, ImportError):
        raise InputError(
            f"a worker cannot take the work ({first_line(error)}); install the same joma on every machine."
        ) from error
    raise error

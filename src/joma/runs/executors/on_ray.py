"""The workers of a ray cluster, reached through its client port."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import ray

from joma.core.errors import InputError, JomaError, first_line
from joma.core.progress import Executor, LostCall
from joma.runs.executors.elsewhere import compute, versions

T = TypeVar("T")


def connect(place: str) -> Executor:
    """The executor for the head at HOST:PORT; it is reached when there is something to compute."""
    return functools.partial(_on_ray, place)


def _on_ray(
    place: str, calls: Sequence[Callable[[], T]], workers: int
) -> Generator[tuple[int, T | LostCall], None, None]:
    """As ``joma.core.progress.Executor`` says; how many at once is the cluster's to say.

    Raises:
        InputError: there is no head, or a worker with other versions.
    """
    if ray.is_initialized():
        raise InputError("this process is already connected to a ray cluster; disconnect it first.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what it has to say is said below
            ray.init(f"ray://{place}", logging_level=logging.CRITICAL, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no ray head answers at {place} ({first_line(error)}); start one with 'ray start --head "
            "--ray-client-server-port PORT', or look at its address."
        ) from error
    try:
        # A process for each call, as on this machine: none grows, and none is shared.
        remote = ray.remote(num_cpus=1, max_calls=1, max_retries=2)(compute)
        asked_by = versions()
        numbers: dict[Any, int] = {remote.remote(call, asked_by): number for number, call in enumerate(calls)}
        while numbers:
            try:
                ready, _ = ray.wait(list(numbers), num_returns=1)
                outcomes = [(numbers[reference], _outcome(reference)) for reference in ready]
            except ConnectionError as error:
                ready = list(numbers)
                outcomes = [(number, LostCall(first_line(error))) for number in numbers.values()]
            for reference in ready:
                del numbers[reference]
            yield from outcomes
    finally:
        ray.shutdown()


def _outcome(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, JomaError) or not isinstance(cause, ImportError):
            raise cause from None
        raise InputError(
            f"a worker cannot take the work ({first_line(cause)}); install the same joma on every machine."
        ) from error
    except ray.exceptions.RayError as error:
        return LostCall(first_line(error))

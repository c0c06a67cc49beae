"""Where a monitor's numbers go besides its folder: a function, TensorBoard, W&B, MLflow, trackio.

A tracker is imported by whoever made it; joma calls its own method with a step and plain numbers.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from joma.errors import InputError, nearest

Numbers = Mapping[str, float]
Sink = Callable[[int, Numbers], None]
_TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
_FAILURES = 3
_log = logging.getLogger("joma")


@runtime_checkable
class ScalarWriter(Protocol):
    """TensorBoard's ``SummaryWriter``, and what is like it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write one number."""


def sink_of(log: Sink | ScalarWriter | str | None) -> Sink | None:
    """What to call with a step and its numbers.

    Args:
        log: a function of ``(step, {name: number})``; an object with ``add_scalar``; or the name of a
            tracker whose run is active: ``wandb``, ``trackio``, ``mlflow``, or ``tensorboard`` (a writer
            in its default folder).

    Raises:
        InputError: an unknown name, or a tracker that is not installed.
    """
    if log is None:
        return None
    if isinstance(log, ScalarWriter):
        return _Guarded(_scalars(log))
    if callable(log):
        return _Guarded(log)
    if log not in _TRACKERS:
        raise InputError(f"log = {log!r} in Monitor is unknown; {nearest(str(log), _TRACKERS)}")
    try:
        if log == "tensorboard":
            writer: ScalarWriter = importlib.import_module("torch.utils.tensorboard").SummaryWriter()
            return _Guarded(_scalars(writer))
        tracker = importlib.import_module(log)
    except ImportError as error:
        raise InputError(f"log = {log!r} in Monitor needs the package {log}: pip install {log}") from error
    if log == "mlflow":
        return _Guarded(lambda step, numbers: tracker.log_metrics(dict(numbers), step=step))
    return _Guarded(lambda step, numbers: tracker.log(dict(numbers), step=step))


def _scalars(writer: ScalarWriter) -> Sink:
    def write(step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return write


class _Guarded:
    """A sink that may fail: training goes on, and after a few failures in a row the sink is left alone."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._failures = 0

    def __call__(self, step: int, numbers: Numbers) -> None:
        if self._failures >= _FAILURES:
            return
        try:
            self._sink(step, numbers)
        except Exception as error:  # whatever a tracker raises must not end a training run
            self._failures += 1
            last = " It is not tried again." if self._failures == _FAILURES else ""
            _log.warning("joma: the log refused step %d (%s: %s).%s", step, type(error).__name__, error, last)
        else:
            self._failures = 0

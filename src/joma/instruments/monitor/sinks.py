"""Where a monitor's numbers go besides its folder: a function, TensorBoard, W&B, MLflow, trackio.

A tracker is imported by whoever made it; joma calls its own method with a step and plain numbers.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from joma.core.errors import InputError, nearest
from joma.instruments.monitor.messages import Message

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


def sink_of(log: Sink | ScalarWriter | str | None) -> Destination | None:
    """What to hand a step and its numbers, and messages.

    Args:
        log: a function of ``(step, {name: number})``; an object with ``add_scalar``; or the name of a
            tracker whose run is active: ``wandb``, ``trackio``, ``mlflow``, or ``tensorboard`` (a writer
            in its default folder). ``wandb`` and ``trackio`` get messages too, as their alerts.

    Raises:
        InputError: an unknown name, or a tracker that is not installed.
    """
    if log is None:
        return None
    if isinstance(log, ScalarWriter):
        return Destination(_scalars(log))
    if callable(log):
        return Destination(log)
    if log not in _TRACKERS:
        raise InputError(f"log = {log!r} in Monitor is unknown; {nearest(str(log), _TRACKERS)}")
    try:
        if log == "tensorboard":
            writer: ScalarWriter = importlib.import_module("torch.utils.tensorboard").SummaryWriter()
            return Destination(_scalars(writer))
        tracker = importlib.import_module(log)
    except ImportError as error:
        raise InputError(f"log = {log!r} in Monitor needs the package {log}: pip install {log}") from error
    if log == "mlflow":
        return Destination(lambda step, numbers: tracker.log_metrics(dict(numbers), step=step))

    def alert(title: str, text: str, serious: bool) -> None:
        level = tracker.AlertLevel.WARN if serious else tracker.AlertLevel.INFO
        tracker.alert(title=title, text=text, level=level)

    return Destination(lambda step, numbers: tracker.log(dict(numbers), step=step), alert)


def _scalars(writer: ScalarWriter) -> Sink:
    def write(step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return write


class Destination:
    """A sink that may fail: training goes on, and after a few failures in a row the sink is left alone."""

    def __init__(self, sink: Sink, alert: Callable[[str, str, bool], None] | None = None) -> None:
        self._sink = sink
        self._alert = alert
        self._failures = 0

    def write(self, step: int, numbers: Numbers) -> None:
        """The numbers of one look."""
        self._guarded(step, lambda: self._sink(step, numbers))

    def tell(self, message: Message) -> None:
        """A message, where the tracker has alerts of its own."""
        if self._alert is not None:
            alert, serious = self._alert, message.kind in ("alarm", "state")
            title = f"joma: {message.kind}: {message.where}"
            self._guarded(message.step, lambda: alert(title, message.sentence(), serious))

    def _guarded(self, step: int, act: Callable[[], None]) -> None:
        if self._failures >= _FAILURES:
            return
        try:
            act()
        except Exception as error:  # whatever a tracker raises must not end a training run
            self._failures += 1
            last = " It is not tried again." if self._failures == _FAILURES else ""
            _log.warning("joma: the log refused step %d (%s: %s).%s", step, type(error).__name__, error, last)
        else:
            self._failures = 0

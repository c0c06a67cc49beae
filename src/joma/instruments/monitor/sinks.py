"""Where a monitor's numbers go besides its folder: a function, TensorBoard, W&B, MLflow, trackio, Comet.

A tracker is imported by whoever made it; joma calls its own method with a step and plain numbers.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from joma.core.errors import InputError, nearest
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.guard import LOG

Numbers = Mapping[str, float]
Sink = Callable[..., Any]
"""Takes ``(step, numbers)`` or ``(numbers, step)``, as its signature says."""
_TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
_FAILURES = 3


@runtime_checkable
class ScalarWriter(Protocol):
    """TensorBoard's ``SummaryWriter``, and what is like it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write one number."""


@runtime_checkable
class MetricLogger(Protocol):
    """A Comet experiment, a logger of Lightning, the module ``mlflow``."""

    def log_metrics(self, metrics: Numbers, *, step: int) -> None:
        """Write several numbers."""


@runtime_checkable
class TrackedRun(Protocol):
    """A run of W&B or trackio, or the module itself."""

    def log(self, numbers: Numbers, *, step: int) -> None:
        """Write several numbers."""


Trackers = ScalarWriter | MetricLogger | TrackedRun


def sink_of(log: Sink | Trackers | str | None) -> Destination | None:
    """What to hand a step and its numbers, and messages.

    Args:
        log: a function of ``(step, {name: number})`` or, where its second parameter is called ``step``
            (``wandb.log``, ``trackio.log``), of ``({name: number}, step)``; ``print``, for a line of few
            numbers; an object with ``add_scalar``, ``log_metrics`` or ``log`` (a writer of TensorBoard, a
            Comet experiment, a run of W&B or trackio); or the name of a tracker whose run is active:
            ``wandb``, ``trackio``, ``mlflow``, or ``tensorboard`` (a writer in its default folder). ``wandb``
            and ``trackio`` by name get messages too, as their alerts.

    Raises:
        InputError: an unknown name, or a tracker that is not installed.
    """
    if log is None:
        return None
    if log is print:
        return Destination(lambda step, numbers: print(_line(step, numbers), flush=True))
    if isinstance(log, ScalarWriter):
        return Destination(_scalars(log))
    if isinstance(log, MetricLogger):
        return Destination(lambda step, numbers: log.log_metrics(dict(numbers), step=step))
    if not callable(log) and isinstance(log, TrackedRun):
        return Destination(lambda step, numbers: log.log(dict(numbers), step=step))
    if callable(log):
        return Destination(_call_sink(log))
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


def _call_sink(log: Sink) -> Sink:
    """A function as one of a step and its numbers."""
    try:
        taken = list(inspect.signature(log).parameters.values())
    except (TypeError, ValueError):  # a builtin that does not tell
        return log
    places = [one.name for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names = [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if "step" in names and places[:1] != ["step"]:
        return lambda step, numbers: log(dict(numbers), step=step)
    if len(places) == 1 and not any(one.kind is one.VAR_POSITIONAL for one in taken):
        return lambda step, numbers: log({"step": step, **numbers})
    return log


def _line(step: int, numbers: Numbers) -> str:
    """Step, loss, and the extremes over all heads."""
    words = [f"step {step}"]
    for name, label in (("loss", "loss"), ("gradient_norm", "gradient norm")):
        if (value := numbers.get(f"joma/{name}")) is not None:
            words.append(f"{label} {value:.4g}")
    for metric, end, extreme, label in (
        ("attention_entropy", "/min", min, "least attention entropy"),
        ("largest_logit", "/max", max, "largest logit"),
    ):
        found = [
            v for name, v in numbers.items() if name.startswith(f"joma/{metric}/") and name.endswith(end)
        ]
        if found:
            words.append(f"{label} {extreme(found):.3g}")
    return ", ".join(words)


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
        self._guard(step, lambda: self._sink(step, numbers))

    def tell(self, message: Message) -> None:
        """A message, where the tracker has alerts of its own."""
        if self._alert is not None:
            alert, serious = self._alert, message.kind in ("alarm", "state")
            title = f"joma: {message.kind}: {message.where}"
            self._guard(message.step, lambda: alert(title, message.sentence(), serious))

    def _guard(self, step: int, act: Callable[[], None]) -> None:
        if self._failures >= _FAILURES:
            return
        try:
            act()
        except Exception as error:  # whatever a tracker raises must not end a training run
            self._failures += 1
            last = " It is not tried again." if self._failures == _FAILURES else ""
            LOG.warning("joma: the log refused step %d (%s: %s).%s", step, type(error).__name__, error, last)
        else:
            self._failures = 0

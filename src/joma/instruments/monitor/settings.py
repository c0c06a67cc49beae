"""The settings of a monitor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import nn
from torch.optim.optimizer import Optimizer

from joma.core.errors import InputError
from joma.instruments.monitor.acts.restore import Restore
from joma.instruments.monitor.alarms.calibration import Folders
from joma.instruments.monitor.alarms.telling import OnAlarm
from joma.instruments.monitor.measuring.norms import Scaler
from joma.instruments.monitor.sinks import Sink, Trackers

RANKS_EVERY = 20
"""Looks between two readings of the stable ranks."""
STATISTICS = ("entropy", "normalised_entropy", "largest_logit", "first_key_mass")


class MonitorSettings(TypedDict, total=False):
    """The settings of ``Monitor``, the model aside, as the skins over it take them."""

    every: int
    statistics: Sequence[str]
    layers: Iterable[int | str] | None
    rows: float | None
    log: Sink | Trackers | str | None
    folder: str | Path | None
    ranks_every: int | None
    steps: int | None
    alpha: float
    on_alarm: OnAlarm
    on_state: OnAlarm | None
    scaler: Scaler | None
    optimizer: Optimizer | None
    restore: Restore | None
    clip_at: float
    reference: Folders | None
    growth: bool


def check(model: Any, every: Any, ranks_every: int | None, steps: int | None, alpha: float) -> None:
    """Raises InputError for what no monitor can work with."""
    if not isinstance(model, nn.Module):
        raise InputError(f"Monitor(model) got a {type(model).__name__}; give a torch.nn.Module.")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InputError(f"every = {every!r} in Monitor is not a cadence; give a whole number of at least 1.")
    if ranks_every is not None and ranks_every < 1:
        raise InputError(f"ranks_every = {ranks_every!r} in Monitor; give at least 1 look, or None.")
    if steps is not None and steps < 1:
        raise InputError(f"steps = {steps!r} in Monitor; plan at least 1 step, or None.")
    if not 0 < alpha < 1:
        raise InputError(f"alpha = {alpha!r} in Monitor is not a probability; give one in (0, 1).")

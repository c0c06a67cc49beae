"""What a run became, by its loss and its twin's alone: fixed before any rule is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Label = Literal["healthy", "recovered", "degraded", "collapsed"]

SMOOTHED = 10
"""Steps that the loss is averaged over."""
RISE = 0.15
"""Nats above its running minimum at which a smoothed loss has risen, and above its twin's end from which on a
run is degraded."""
COLLAPSE = 0.5
END = 20
"""Last steps whose mean is a run's end."""


@dataclass(frozen=True)
class Became:
    """A run's label, and the branch's step at which its loss rose (None: it did not)."""

    label: Label
    onset: int | None
    excess: float
    """Nats of its end above its twin's at the same steps."""


def became(loss: Array, twin: Array, past: Array) -> Became:
    """Judge a branch.

    Args:
        loss: of every step of the branch.
        twin: of its twin, the same batches, at least as long.
        past: of the base's last steps, so that the running minimum begins before the branch.

    A loss that is not finite is a rise at its step, and a collapse if it is so at the end.
    """
    ended = at_end(loss, twin[: len(loss)])
    before = past[-2 * SMOOTHED :]
    found = onset(np.concatenate([before, loss]))
    step = None if found is None else max(found - len(before), 0)
    label: Label = "recovered" if ended.label == "healthy" and step is not None else ended.label
    return Became(label, step, ended.excess)


def at_end(loss: Array, twin: Array) -> Became:
    """Judge a run by its last 20 steps alone: it has no past, or none that it could be held against."""
    excess = float(loss[-END:].mean() - twin[-END:].mean())
    label: Label = "collapsed" if not excess < COLLAPSE else "degraded" if excess >= RISE else "healthy"
    return Became(label, None, excess)


def onset(loss: Array) -> int | None:
    """First step at which the mean of the last ten losses is above its running minimum by 0.15 nats."""
    least = np.inf
    for step in range(SMOOTHED - 1, len(loss)):
        smooth = float(loss[step - SMOOTHED + 1 : step + 1].mean())
        if not smooth < least + RISE:
            return step
        least = min(least, smooth)
    return None

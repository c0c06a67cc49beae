"""Does sigma_1 of some head's W_Q^T W_K grow as this run never let it grow? And where does that lead?

The statistic is the largest rise of ln sigma_1 of any head over ``WINDOW`` steps: a ratio of norms, whatever
the width, the depth or the scale of the weights. It is held against what is usual in the run itself (a
winsorised mean of the same statistic, of windows that ended before this one began) and against ``FLOOR``,
below which no growth is told; a growth that slows down (a healthy transition) is none. The constants were
chosen on the kinds of networks that ``CHOSEN_ON`` lists in ``benchmarks/growth_study/kinds.py``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WINDOW = 20
"""Steps over which a rise is taken."""
SETTLING = 150
"""Steps of a run that teach nothing: early learning lets every head grow. What is usual is known two windows
later, and no rise is told before."""
FLOOR = 0.7
"""Rise of ln sigma_1 over a window below which nothing is told."""
TIMES = 3.0
"""How many times the run's usual rise a rise must be."""
LASTING = 0.4
"""Share of a rise that must fall into the second half of its window, or it slows down."""
LEAST = 1.0
"""Largest logit below which it need not grow with sigma_1: other terms make most of it."""
_RATE, _CLIP = 0.05, 2.0
"""Rate at which the usual rise follows, and how many times itself a rise may move it."""
LOW, MIDDLE, HIGH = 0.3, 0.65, 1.15
"""Steps until a level was reached, over those that growth at one rate would take: the quantiles at 10, 50 and
90 %. Faults that double a rate grow faster and faster."""


@dataclass(frozen=True)
class GrowthState:
    """What is known after some readings: those of the last window, and what rises are usual."""

    steps: tuple[int, ...] = ()
    values: tuple[Array, ...] = ()
    """ln sigma_1 of each head, at ``steps``."""
    waiting: tuple[tuple[int, float], ...] = ()
    """The rises of windows that have not ended before the last one began."""
    usual: float = math.nan
    first: int = -1


@dataclass(frozen=True)
class Growth:
    """What one reading shows; ``score`` is at least 1 where the rule speaks."""

    step: int
    score: float
    """The largest rise over what is allowed; NaN before there is a window."""
    head: int
    rise: float
    """Of ln sigma_1 of that head over the window."""
    rate: float
    """Of that head over the second half of the window, per step."""
    usual: float
    rises: Array
    """Of every head."""


def add_reading(before: GrowthState, step: int, values: Array) -> tuple[GrowthState, Growth]:
    """After one more reading of all heads at ``step``; a head whose value is NaN shows no rise.

    Examples:
        >>> from joma.measures.change.growth import GrowthState, add_reading
        >>> state = GrowthState()
        >>> for step in range(0, 400, 5):
        ...     values = np.array([0.001 * step, 0.05 * max(step - 300, 0)])
        ...     state, growth = add_reading(state, step, values)
        >>> growth.head, round(growth.rise, 2), growth.score > 1
        (1, 1.0, True)
    """
    first = step if before.first < 0 else before.first
    kept = [(at, old) for at, old in zip(before.steps, before.values, strict=True) if at >= step - WINDOW]
    kept.append((step, values))
    after = dataclasses.replace(
        before, steps=tuple(at for at, _ in kept), values=tuple(old for _, old in kept), first=first
    )
    nothing = Growth(step, math.nan, 0, 0.0, 0.0, before.usual, np.zeros(len(values)))
    begin, oldest = kept[0]
    if step - begin < WINDOW / 2 or len(oldest) != len(values):
        return after, nothing
    middle, half = min(kept, key=lambda one: abs(one[0] - (begin + step) / 2))
    rises = np.nan_to_num((values - oldest) * (WINDOW / (step - begin)), nan=0.0, posinf=0.0, neginf=0.0)
    later = np.nan_to_num(values - half) * (WINDOW / (step - begin))
    after = _learn(after, step, float(rises.max(initial=0.0)))
    if math.isnan(after.usual):
        return after, dataclasses.replace(nothing, rises=rises)
    allowed = max(FLOOR, TIMES * after.usual)
    lasting = np.where(later >= LASTING * rises, rises, 0.0)
    head = int(np.argmax(lasting))
    rate = float(later[head]) / max(step - middle, 1) * ((step - begin) / WINDOW)
    return after, Growth(
        step, float(lasting[head]) / allowed, head, float(rises[head]), rate, after.usual, rises
    )


def _learn(state: GrowthState, step: int, rise: float) -> GrowthState:
    """The usual rise follows those whose windows ended before this one began."""
    usual = state.usual
    waiting: list[tuple[int, float]] = []
    for at, one in (*state.waiting, (step, rise)):
        if at > step - 2 * WINDOW:
            waiting.append((at, one))
        elif at - state.first < SETTLING:
            continue
        elif math.isnan(usual):
            usual = one
        else:
            usual += _RATE * (min(one, _CLIP * usual + 0.01) - usual)
    return dataclasses.replace(state, usual=usual, waiting=tuple(waiting))


@dataclass(frozen=True)
class Forecast:
    """When something that grows with sigma_1 reaches a level, if the growth goes on as it is."""

    at: float
    """Step."""
    low: float
    high: float
    """Between which eight of ten such forecasts hold."""


def forecast_crossing(step: int, value: float, level: float, rate: float) -> Forecast | None:
    """When a value whose logarithm grows at a rate, and ever faster, reaches a level; None where it does not.

    Args:
        step: now.
        value: now; of one below ``LEAST`` nothing is forecast.
        level: to be reached.
        rate: of its logarithm, per step.

    Examples:
        >>> from joma.measures.change.growth import forecast_crossing
        >>> found = forecast_crossing(100, 25.0, 100.0, math.log(2) / 20)
        >>> round(found.at)
        126
    """
    if not (LEAST < value < math.inf) or rate <= 0:
        return None
    if value >= level:
        return Forecast(float(step), float(step), float(step))
    needed = math.log(level / value) / rate
    return Forecast(step + MIDDLE * needed, step + LOW * needed, step + HIGH * needed)

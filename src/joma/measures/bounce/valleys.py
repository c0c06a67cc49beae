"""The valleys of a curve, smoothed: the lowest one, and those before it that recovered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import oaconvolve

from joma.core.arguments import Array, numbers, whole
from joma.core.errors import InputError

_DIRECT_PRODUCTS = 2 * 10**7


@dataclass(frozen=True)
class Dip:
    """A valley of the smoothed curve."""

    step: float
    """Where the smoothed curve is lowest."""
    value: float
    """The smoothed curve there."""
    depth: float
    """How far it fell: the highest smoothed value before, minus ``value``."""
    rebound: float
    """How far it rose again: the highest smoothed value after, minus ``value``."""
    rebound_step: float
    """Where that highest value after the dip stands."""


def smooth(values: ArrayLike, window: int) -> Array:
    """Centred moving average with triangular weights over ``window`` points (odd), shorter at the ends.

    Raises:
        InputError: values (n,) that are not finite numbers, or a window that is not odd and positive.
    """
    curve = numbers("smooth", "values", values)
    if curve.ndim != 1 or curve.size == 0 or not np.all(np.isfinite(curve)):
        raise InputError(f"smooth: values {curve.shape} must be a vector of finite numbers, at least one.")
    if whole("smooth", "window", window) % 2 == 0:
        raise InputError(f"smooth: window = {window} must be odd.")
    half = window // 2
    weights = np.concatenate([np.arange(1, half + 2), np.arange(half, 0, -1)]).astype(np.float64)
    around = slice(half, half + curve.size)
    return convolve(curve, weights)[around] / convolve(np.ones_like(curve), weights)[around]


def convolve(curve: Array, weights: Array) -> Array:
    """The full convolution, in a time that is near linear in the curve's length.

    Sums term by term keep small values beside large ones; only long ones go through the transform.
    """
    short = curve.size * weights.size <= _DIRECT_PRODUCTS
    return np.asarray(np.convolve(curve, weights) if short else oaconvolve(curve, weights))


def dip_at(time: Array, level: Array, floor: int) -> Dip:
    """The valley whose floor is at that index, from where the smooth leaves it to either side."""
    lower = np.flatnonzero(level < level[floor])
    begin = lower[lower < floor].max(initial=-1) + 1
    end = lower[lower > floor].min(initial=level.size)
    before = begin + int(np.argmax(level[begin : floor + 1]))
    return _dip(time, level, before, floor, floor + int(np.argmax(level[floor:end])))


def _dip(time: Array, level: Array, before: int, floor: int, after: int) -> Dip:
    return Dip(
        step=float(time[floor]),
        value=float(level[floor]),
        depth=float(level[before] - level[floor]),
        rebound=float(level[after] - level[floor]),
        rebound_step=float(time[after]),
    )


def transients(time: Array, level: Array, end: float, least: float) -> tuple[Dip, ...]:
    """Valleys that fall and recover by more than ``least`` before step ``end``, in order."""
    stop = int(np.searchsorted(time, end)) + 1
    dips = (_dip(time[:stop], level[:stop], *valley) for valley in _valleys(level[:stop]))
    return tuple(dip for dip in dips if min(dip.depth, dip.rebound) > least)


def _valleys(level: Array) -> list[tuple[int, int, int]]:
    """Each valley between the ends: the index of the highest value before, the floor, the highest after.

    A valley reaches as far to either side as nothing lies below its floor (as in ``dip_at``). One
    pass over the turns: a stack holds the valleys that are still open, none lower than the one before.
    """
    falling = level[1:] < level[:-1]
    floors = (np.flatnonzero(falling[:-1] & ~falling[1:]) + 1).tolist()
    values = level.tolist()

    def higher(first: int, second: int) -> int:
        return second if values[second] > values[first] else first

    closed: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int, int, int]] = []  # the peak since the one below, that before, floor, after
    begin = 0
    for floor in (*floors, level.size - 1):
        peak = begin + int(np.argmax(level[begin : floor + 1]))
        while stack and values[stack[-1][2]] > values[floor]:
            since, before, closing, after = stack.pop()
            closed.append((before, closing, higher(after, peak)))
            peak = higher(since, higher(after, peak))
        before = peak
        if stack:
            since, earlier, other, after = stack[-1]
            stack[-1] = since, earlier, other, higher(after, peak)
            if values[other] == values[floor]:
                before = higher(earlier, stack[-1][3])
        stack.append((peak, before, floor, floor))
        begin = floor
    peak = level.size - 1
    while stack:
        since, before, closing, after = stack.pop()
        peak = higher(after, peak)
        closed.append((before, closing, peak))
        peak = higher(since, peak)
    return sorted((one for one in closed if 0 < one[1] < level.size - 1), key=lambda one: one[1])

"""Rules that others have published, as pure functions of series: scores, and their first crossing.

They stand beside ``joma.measures.change.e_detector`` where rules are compared. Series have their steps in
the first axis; every other axis holds series of their own. A score is NaN while a rule cannot alarm yet. A
value that is not finite is left out of every window (one NaN would blind a window for its whole length).
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]


def first(scores: Array, level: float) -> int | None:
    """The first step at which one series' score is at least ``level``."""
    found = np.flatnonzero(scores >= level)
    return int(found[0]) if found.size else None


def cusum(values: Array, *, window: int = 200, slack: float = 1.0) -> Array:
    """Upward CUSUM against mean and deviation of the first ``window`` values; a usual level is 6.

    S_t = max(0, S_{t-1} + (x_t - mean)/deviation - slack). The score of a value that is not finite is
    infinite: a loss that is no number has changed. A window without spread gives no score.
    """
    values = np.asarray(values, dtype=np.float64)
    scores = np.full(values.shape, np.nan)
    mean, deviation = _moments(_finite(values[:window]), 0)
    deviation = np.where(deviation > 0, deviation, np.nan)
    total = np.zeros(values.shape[1:])
    for step in range(window, len(values)):
        finite = np.isfinite(values[step])
        grown = np.maximum(0.0, total + (np.where(finite, values[step], 0.0) - mean) / deviation - slack)
        total = np.where(finite, grown, total)
        scores[step] = np.where(finite | np.isnan(deviation), total, np.inf)
    return scores


def deviations(values: Array, *, window: int = 128) -> Array:
    """Distance from the mean of the ``window`` values before, in their deviations (OLMo-core: 6 over 128).

    Infinite for a value that is not finite.
    """
    past, now = _windows(values, window)
    mean, deviation = _moments(past, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = (now - mean) / deviation
    return _after(window, values, np.where(np.isfinite(now), score, np.inf))


def absolute_deviations(values: Array, *, window: int = 128) -> Array:
    """Distance from the median of the ``window`` values before, in median absolute deviations.

    NaN for a value that is not finite.
    """
    past, now = _windows(values, window)
    # What knows of NaN takes a hundred times as long.
    median = np.nanmedian if np.isnan(past).any() else np.median
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a window without a finite value
        middle = median(past, axis=-1)
        spread = median(np.abs(past - middle[..., None]), axis=-1)
        score = (now - middle) / spread
    return _after(window, values, np.where(np.isfinite(now), score, np.nan))


def lasting_rise(values: Array, *, window: int = 100, times: int = 5) -> Array:
    """The least of the last ``times`` ratios to the mean of the window before (llm-foundry: 2, five times).

    A value that is not finite has an infinite ratio.
    """
    past, now = _windows(values, window)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(np.isfinite(now), now / _moments(past, -1)[0], np.inf)
    scores = np.full(np.shape(values), np.nan)
    if len(ratio) >= times:
        scores[window + times - 1 :] = sliding_window_view(ratio, times, axis=0).min(axis=-1)
    return scores


def _windows(values: Array, window: int) -> tuple[Array, Array]:
    """The finite values of each window, last axis, and the value that comes after it."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) <= window:
        return np.empty((0, *values.shape[1:], window)), values[:0]
    return sliding_window_view(_finite(values[:-1]), window, axis=0), values[window:]


def _after(window: int, values: Array, scores: Array) -> Array:
    found = np.full(np.shape(values), np.nan)
    found[window:] = scores
    return found


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.nan)


def _moments(values: Array, axis: int) -> tuple[Array, Array]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a window without a finite value
        return np.nanmean(values, axis=axis), np.nanstd(values, axis=axis)

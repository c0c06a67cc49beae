"""What is new in a series: winsorised residuals from its own smoothed past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL, SCALE, CLIP = 0.05, 0.02, 4.0
"""Rates at which level and scale follow, and how many scales a value may move them."""
_SLOW = 0.005
"""Rate at which the residuals' own moments follow, after a plain mean of the first 200."""


@dataclass(frozen=True)
class Past:
    """What a set of series remembers of itself; every array has one entry per series, in any shape.

    ``known`` counts the finite values seen. A value that is not finite changes nothing.
    """

    level: Array
    scale: Array
    known: NDArray[np.int64]

    @classmethod
    def empty(cls, series: int | tuple[int, ...]) -> Past:
        """Nothing seen yet."""
        nothing = np.full(series, np.nan)
        return cls(nothing, nothing, np.zeros(series, dtype=np.int64))


@dataclass(frozen=True)
class Moments:
    """What the residuals of series have shown of themselves: one entry per series."""

    mean: Array
    """Smoothed residual: the drift, in scales."""
    square: Array
    product: Array
    """Smoothed square, and product of neighbours."""
    last: Array
    """The residual before."""
    counted: NDArray[np.int64]

    @classmethod
    def empty(cls, series: int | tuple[int, ...]) -> Moments:
        """Nothing seen yet."""
        zeros = np.zeros(series)
        return cls(zeros, zeros, zeros, zeros, np.zeros(series, dtype=np.int64))

    def add(self, residual: Array) -> Moments:
        """With one more residual of each series; those that are NaN count for nothing."""
        seen = np.isfinite(residual)
        value = np.where(seen, residual, 0.0)
        counted = self.counted + seen
        rate = np.where(seen, np.maximum(_SLOW, 1.0 / np.maximum(counted, 1)), 0.0)
        return Moments(
            self.mean + rate * (value - self.mean),
            self.square + rate * (value**2 - self.square),
            self.product + rate * (value * self.last - self.product),
            np.where(seen, value, self.last),
            counted,
        )

    def long_run_variance(self) -> Array:
        """Variance of a mean of residuals, times their number, as for an autoregression of order one.

        In squared scales; NaN for fewer than ten values. Correlations that outlast those of such an
        autoregression are not in it.
        """
        variance = np.maximum(self.square - self.mean**2, 0.0)
        covariance = self.product - self.mean**2
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.clip(covariance / variance, -0.95, 0.95)
            factor = (1 + correlation) / (1 - correlation)
        return np.where((self.counted >= 10) & (variance > 0), variance * factor, np.nan)


def renew(past: Past, values: Array, *, learning: int) -> tuple[Past, Array]:
    """The past with one more value of each series, and the values' residuals in scales.

    Level and scale follow by the mean of the first ``learning`` values and by exponential smoothing after
    them, each value winsorised at ``CLIP`` scales, so that neither an outlier nor the change that is
    looked for drags them along. Residuals are clipped likewise; they are NaN for values that are not
    finite and while fewer than ``learning`` are known.

    Args:
        past: of ``n`` series.
        values: one of each series, in the shape of the past.
        learning: number of first values that only teach, at least 2.
    """
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    first = finite & (past.known == 0)
    known = past.known + finite
    rate = np.maximum(LEVEL, 1.0 / np.maximum(known, 1))
    slow = np.maximum(SCALE, 1.0 / np.maximum(known, 1))
    gap = np.where(first, 0.0, values - past.level)
    scale = np.where(np.isfinite(past.scale), past.scale, np.abs(gap))
    bound = CLIP * scale
    taught = np.where((known <= learning) | (scale <= 0), gap, np.clip(gap, -bound, bound))
    with np.errstate(invalid="ignore", divide="ignore"):
        residual = np.clip(gap / scale, -CLIP, CLIP)
    residual = np.where(finite & (known > learning) & (scale > 0), residual, np.nan)
    # sqrt(pi/2) times the mean absolute deviation is the standard deviation of normal noise.
    size = np.sqrt(np.pi / 2) * np.abs(taught)
    level = np.where(first, values, past.level + rate * taught)
    wider = np.where(known <= 2, size, scale + slow * (size - scale))

    return (
        Past(np.where(finite, level, past.level), np.where(finite & ~first, wider, past.scale), known),
        residual,
    )


def residuals(values: Array, *, learning: int = 50) -> Array:
    """Residuals of whole series at once: shape ``(steps,)`` or ``(steps, n)`` in, the same out."""
    table = np.asarray(values, dtype=np.float64)
    wide = table.reshape(len(table), -1)
    past = Past.empty(wide.shape[1])
    rows = []
    for row in wide:
        past, residual = renew(past, row, learning=learning)
        rows.append(residual)
    return np.reshape(rows, table.shape)

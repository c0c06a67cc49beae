"""Numbers as letters: two a value, one an error, so that a page can carry thousands of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joma.core.arguments import Array

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
HIGHEST, BELOW, ABOVE, MISSING = 4092, 4093, 4094, 4095
"""The code of the highest finite value; those of minus and plus infinity, and of what was not measured."""
ERRORS = 62
"""The code of the largest error; the code after it stands for an unknown one."""
_DECADES = 100.0
"""Highest over lowest value from which on the codes are spaced evenly in the logarithm."""
_TINY = 1e-300


@dataclass(frozen=True)
class Letters:
    """Values between two limits, and the errors of each, between two others (``elow`` 0: none is known)."""

    values: str
    low: float
    high: float
    logarithmic: bool
    errors: str
    elow: float
    ehigh: float

    def gap(self) -> float:
        """Half the distance of two codes: absolute, or relative where they are spaced logarithmically."""
        if self.logarithmic:
            return float(np.expm1(np.log(self.high / self.low) / HIGHEST / 2))
        return (self.high - self.low) / HIGHEST / 2


def encode(values: Array, errors: Array) -> Letters:
    """The letters of values and of the bounds of their errors (NaN: not known, not measured).

    A value is rounded to the nearest code; an error includes that rounding, and is rounded upward. Where
    the rounding is above every error, errors are told by the number of digits that the page shows.
    """
    values = np.asarray(values, float)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    logarithmic = low > 0 and high > _DECADES * low
    codes = np.full(len(values), MISSING)
    codes[values == np.inf], codes[values == -np.inf] = ABOVE, BELOW
    known = np.isfinite(values)
    shares = _shares(values[known], low, high, logarithmic)
    codes[known] = np.rint(HIGHEST * shares).astype(int)
    told = Letters(_letters(codes, 2), low, high, logarithmic, "", 0.0, 0.0)
    gaps = told.gap() * (np.abs(values) if logarithmic else np.ones(len(values)))
    bounds = np.asarray(errors, float)
    judged = known & np.isfinite(bounds) & (bounds >= 0)
    if not (judged & (bounds > gaps)).any():
        return told
    total = np.maximum(bounds + gaps, _TINY)
    elow, ehigh = float(total[judged].min()), float(total[judged].max())
    marks = np.full(len(values), ERRORS + 1)
    upward = np.ceil(ERRORS * _shares(total[judged], elow, ehigh, logarithmic=True) - 1e-9)
    marks[judged] = np.clip(upward, 0, ERRORS).astype(int)
    return Letters(told.values, low, high, logarithmic, _letters(marks, 1), elow, ehigh)


def _shares(values: Array, low: float, high: float, logarithmic: bool) -> Array:
    """Where values lie between two limits, from 0 to 1."""
    if high == low:
        return np.zeros(len(values))
    if logarithmic:
        return np.asarray(np.log(values / low) / np.log(high / low))
    # Halves: the distance of two finite numbers may be beyond the largest one.
    return np.asarray((values / 2 - low / 2) / (high / 2 - low / 2))


def _letters(codes: np.ndarray[tuple[int], np.dtype[np.int64]], width: int) -> str:
    alphabet = np.frombuffer(LETTERS.encode(), np.uint8)
    digits = [alphabet[codes // 64**place % 64] for place in reversed(range(width))]
    return np.stack(digits, axis=1).tobytes().decode() if len(codes) else ""

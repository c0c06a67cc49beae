"""Rules that others have published, as pure functions: step of the first alarm, or None.

They stand beside :mod:`joma.measures.change.e_detector` where rules are compared. A value that is not finite
is left out of every window (one NaN would blind a window for its whole length).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def cusum(values: Array, *, window: int = 200, threshold: float = 6.0, slack: float = 1.0) -> int | None:
    """Upward CUSUM of a loss against mean and deviation of its first ``window`` values.

    S_t = max(0, S_{t-1} + (x_t - mean)/deviation - slack) alarms at ``threshold``. A value that is not
    finite alarms at once: a loss that is no number has changed.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) <= window:
        return None
    known = values[:window][np.isfinite(values[:window])]
    if known.size < 2 or known.std() == 0:
        return None
    total = 0.0
    for step in range(window, len(values)):
        if not np.isfinite(values[step]):
            return step
        total = max(0.0, total + (values[step] - known.mean()) / known.std() - slack)
        if total >= threshold:
            return step
    return None


def beyond_deviations(values: Array, *, window: int = 128, deviations: float = 6.0) -> int | None:
    """First value above mean plus ``deviations`` of the ``window`` before it (OLMo-core: 6 over 128)."""
    values = np.asarray(values, dtype=np.float64)
    for step in range(window, len(values)):
        past = values[step - window : step]
        past = past[np.isfinite(past)]
        if not np.isfinite(values[step]):
            return step
        if past.size > 1 and values[step] > past.mean() + deviations * past.std():
            return step
    return None


def beyond_absolute_deviations(values: Array, *, window: int = 128, deviations: float = 3.0) -> int | None:
    """First value above the median plus ``deviations`` median absolute deviations of the window before."""
    values = np.asarray(values, dtype=np.float64)
    for step in range(window, len(values)):
        past = values[step - window : step]
        past = past[np.isfinite(past)]
        if past.size > 1 and np.isfinite(values[step]):
            middle = float(np.median(past))
            if values[step] > middle + deviations * float(np.median(np.abs(past - middle))):
                return step
    return None


def lasting_rise(values: Array, *, window: int = 100, factor: float = 2.0, times: int = 5) -> int | None:
    """A loss of at least ``factor`` times the mean of the window before, ``times`` in a row (llm-foundry)."""
    values = np.asarray(values, dtype=np.float64)
    row = 0
    for step in range(window, len(values)):
        past = values[step - window : step]
        past = past[np.isfinite(past)]
        high = past.size > 0 and not values[step] < factor * past.mean()
        row = row + 1 if high else 0
        if row == times:
            return step
    return None


def above(values: Array, level: float) -> int | None:
    """First value above an absolute level: logits above 100 (QK-clip), say."""
    found = np.flatnonzero(np.asarray(values, dtype=np.float64) > level)
    return int(found[0]) if found.size else None

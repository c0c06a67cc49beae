"""Exact intervals over independent bases: of a share, of a median."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, chi2

CONFIDENCE = 0.95


def share_bounds(count: int, of: int) -> tuple[float, float]:
    """Clopper-Pearson: the one-sided 95 % lower and upper bounds of a probability; 0 and 1 of nothing.

    0 of 59 has the upper bound 0.0495.
    """
    if of == 0:
        return 0.0, 1.0
    low, high = (
        binomtest(count, of, alternative=side).proportion_ci(CONFIDENCE, method="exact")
        for side in ("greater", "less")
    )
    return float(low.low), float(high.high)


def median_bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    """One-sided 95 % lower and upper bounds of a median, from order statistics: no shape is assumed.

    With fewer than five values there are none: minus and plus infinity.
    """
    ordered = np.sort(values)
    rank = int(binom.ppf(1 - CONFIDENCE, len(ordered), 0.5)) if len(ordered) else 0
    # P(fewer than `rank` values lie below the median) is at most 5 %, so the rank-th is a lower bound.
    while rank > 0 and binom.cdf(rank - 1, len(ordered), 0.5) > 1 - CONFIDENCE:
        rank -= 1
    if rank == 0:
        return -np.inf, np.inf
    return float(ordered[rank - 1]), float(ordered[-rank])


def rate_bound(events: int, steps: int) -> float:
    """Upper 95 % bound of events per 10,000 steps, as of a Poisson process (0 in 30,000: 1.0)."""
    if steps == 0:
        return np.inf
    return float(1e4 * chi2.ppf(CONFIDENCE, 2 * (events + 1)) / 2 / steps)

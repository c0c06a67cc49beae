"""A Shiryaev-Roberts e-detector: the false-alarm probability of a whole run is bounded beforehand.

Let r_t be residuals whose mean is at most ``drift`` given their past and whose long-run variance is at
most ``variance`` (both in scales). Then e_t = exp(w (r_t - drift) - w^2 variance / 2) has mean at most about
one, and R_t = (1 + R_{t-1}) e_t has mean at most t. Averages of such R over series, directions and weights w
have it too, so that the average reaches ``looks / alpha`` within ``looks`` steps with probability at most
``alpha`` (Doob's inequality for R_t - t; Shin, Ramdas, Rinaldo, "E-detectors", 2022). "About": for noise that
is not normal, and for correlated noise over few steps, the bound is an approximation, to be shown by
simulation and on healthy runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joma.core.errors import InputError

Array = NDArray[np.float64]

WEIGHTS = (0.25, 0.5, 1.0)
"""Tilts that are averaged: for small lasting changes and for large quick ones."""
DRIFT, VARIANCE = 0.5, 4.0
"""What healthy residuals may do, in scales: fixed on runs other than those that are judged."""


@dataclass(frozen=True)
class Evidence:
    """Logarithms of R, shape ``(2, ..., n, weights)``: falling and rising directions of ``n`` series.

    Axes in between are runs, each on its own.
    """

    log_r: Array

    @classmethod
    def none(cls, *shape: int) -> Evidence:
        """R = 0 everywhere; ``shape``: runs, if there are several, and series."""
        return cls(np.full((2, *shape, len(WEIGHTS)), -np.inf))

    def total(self) -> Array:
        """Logarithm of each run's average R over directions, series and weights; -inf for no series."""
        runs = np.moveaxis(self.log_r, 0, -1)
        runs = runs.reshape(*runs.shape[:-3], -1)
        with np.errstate(divide="ignore"):
            total: Array = np.logaddexp.reduce(runs, axis=-1) - np.log(max(runs.shape[-1], 1))
        return total

    def strongest(self) -> tuple[int, int]:
        """Series and direction (-1 falling, +1 rising) with the most evidence; of one run."""
        summed = np.logaddexp.reduce(self.log_r, axis=2)
        direction, series = np.unravel_index(int(np.argmax(summed)), summed.shape)
        return int(series), (-1, 1)[int(direction)]


def gather_evidence(
    evidence: Evidence, residual: Array, *, drift: float = DRIFT, variance: float = VARIANCE
) -> Evidence:
    """The evidence with one more residual of each series; a series without one keeps what it had."""
    weights = np.asarray(WEIGHTS)
    signed = np.stack([-residual, residual])[..., None]
    log_e = weights * (signed - drift) - weights**2 * variance / 2
    grown = np.logaddexp(0.0, evidence.log_r) + log_e
    return Evidence(np.where(np.isfinite(signed), grown, evidence.log_r))


def threshold(looks: int, alpha: float) -> float:
    """Logarithm of the bound that R reaches within ``looks`` with probability at most ``alpha``.

    Raises:
        InputError: no look is planned, or alpha is not a probability.
    """
    if looks < 1:
        raise InputError(f"looks = {looks} in threshold; plan at least one look.")
    if not 0 < alpha < 1:
        raise InputError(f"alpha = {alpha} in threshold is not a probability; give one in (0, 1).")
    return float(np.log(looks / alpha))

"""Have several series of a run changed together against their own past? The whole procedure, look by look.

Residuals of each series (``joma.measures.change.residuals``) feed one e-detector
(``joma.measures.change.e_detector``); beside it stands what the run itself shows of the two assumptions.
Everything works on many runs at once: series in the last axis, runs before it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from joma.measures.change.e_detector import DRIFT, VARIANCE, WEIGHTS, Array, Evidence, gather_evidence
from joma.measures.change.residuals import CLIP, Moments, Past, renew

LEARNING = 20
"""Looks that only teach what a run's own past is."""
SETTLING = 150
"""Steps of a run before evidence is gathered: early learning changes attention by itself."""
QUIET = 2.0
"""Logarithm of the average R below which nothing seems to happen: nine in ten looks at healthy runs."""
FEWEST = 50
"""Residuals from which on a run's own drift and variance are judged."""
_EDGE = 1e-6


@dataclass(frozen=True)
class DetectorState:
    """What is known after some looks."""

    past: Past
    moments: Moments
    """Of the residuals since it was armed."""
    evidence: Evidence
    looks: int
    first: int
    """Step of the first look; -1 before it."""
    armed_at: int | None
    """The first step at which an alarm could be raised."""
    drift: Array
    """Of each run: root mean square over series of their mean residuals, in scales, while all was quiet; NaN
    until it is judged."""
    variance: Array
    """Of each run: mean over series of the residuals' long-run variance, likewise."""

    def without_evidence(self) -> DetectorState:
        """Armed anew: evidence is forgotten, what the past taught is kept."""
        return dataclasses.replace(self, evidence=Evidence(np.full_like(self.evidence.log_r, -np.inf)))

    def valid(self) -> Array:
        """Of each run: 1 where the bound's assumptions hold as far as the run has shown, 0 where they do not.

        NaN until the run is judged: before ``FEWEST`` residuals, the last of them at a quiet look.
        """
        held = (self.drift <= DRIFT) & ~(self.variance > VARIANCE)
        return np.where(np.isnan(self.drift), np.nan, held.astype(np.float64))


def began(*shape: int) -> DetectorState:
    """Before the first look; ``shape``: runs, if there are several, and series."""
    nothing = np.full(shape[:-1], np.nan)
    return DetectorState(
        Past.empty(shape), Moments.empty(shape), Evidence.none(*shape), 0, -1, None, nothing, nothing
    )


def add_look(before: DetectorState, values: Array, step: int) -> tuple[DetectorState, Array]:
    """After one more look at ``step``, and the look's residuals.

    Drift and variance are those of the last look at which all was quiet: a change that is just being found
    must not count as the run's own drift.
    """
    past, residual = renew(before.past, values, learning=LEARNING)
    first = step if before.looks == 0 else before.first
    after = dataclasses.replace(before, past=past, looks=before.looks + 1, first=first)
    if after.looks <= LEARNING or step - first < SETTLING:
        return after, residual
    evidence = gather_evidence(before.evidence, residual)
    moments = before.moments.add(residual)
    variance = moments.long_run_variance()
    known = np.isfinite(variance)
    mean = np.where(known, variance, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1)
    calm = (evidence.total() < QUIET) & (moments.counted.max(axis=-1) >= FEWEST)
    return (
        dataclasses.replace(
            after,
            moments=moments,
            evidence=evidence,
            armed_at=step if before.armed_at is None else before.armed_at,
            drift=np.where(calm, np.sqrt(np.mean(moments.mean**2, axis=-1)), before.drift),
            variance=np.where(calm, mean, before.variance),
        ),
        residual,
    )


def first_alarm(first: int, every: int) -> int:
    """The first step at which an alarm can be raised: of looks at ``first`` and each ``every`` steps
    after.
    """
    return first + every * max(LEARNING, -(-SETTLING // every))


def fewest_looks(bound: float, series: int) -> int:
    """Looks that even the strongest change of one series in one direction needs until evidence reaches
    ``bound`` (``joma.measures.change.e_detector.threshold``): residuals are clipped, evidence averaged.
    """
    weights = np.asarray(WEIGHTS)
    most = float(np.max(weights * (CLIP - DRIFT) - weights**2 * VARIANCE / 2))
    return int(np.ceil((bound + np.log(2 * len(WEIGHTS) * max(series, 1))) / most))


def comparable(metric: str, values: Array) -> Array:
    """A statistic on a scale on which its changes are comparable.

    The logit of an entropy's share of log n, the logarithm of a largest logit (arcsinh(x/2), defined for
    all) and of a root mean square.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        if metric == "normalised_entropy":
            inside = np.clip(values, _EDGE, 1 - _EDGE)
            return np.asarray(np.log(inside / (1 - inside)))
        if metric == "largest_logit":
            return np.asarray(np.arcsinh(values / 2))
        return np.asarray(np.where(values > 0, np.log(values), np.nan))

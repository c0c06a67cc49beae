"""The whole procedure, look by look, against its sentences written out for one run."""

from __future__ import annotations

import numpy as np
import pytest

from joma.measures.change import detector
from joma.measures.change.detector import LEARNING, QUIET, SETTLING, DetectorState, add_look, began
from joma.measures.change.e_detector import Evidence, gather_evidence
from joma.measures.change.residuals import Moments, Past, renew


def watch(values: np.ndarray, every: int = 10) -> DetectorState:
    state = began(values.shape[1])
    for number, row in enumerate(values):
        state, _ = add_look(state, row, every * number)
    return state


def by_hand(values: np.ndarray, every: int = 10) -> tuple[list[np.ndarray], Moments, float, float]:
    """The residuals that count, their moments, and drift and variance at the last quiet look."""
    series = values.shape[1]
    past, evidence, moments = Past.empty(series), Evidence.none(series), Moments.empty(series)
    drift = variance = 0.0
    rows = []
    for number, row in enumerate(values):
        past, residual = renew(past, row, learning=LEARNING)
        if number < LEARNING or every * number < SETTLING:
            continue
        rows.append(residual)
        evidence, moments = gather_evidence(evidence, residual), moments.add(residual)
        known = [one for one in moments.long_run_variance() if np.isfinite(one)]
        if evidence.total() < QUIET and max(moments.counted) >= 50:
            drift = float(np.sqrt(sum(one**2 for one in moments.mean) / series))
            variance = sum(known) / len(known)
    return rows, moments, drift, variance


@pytest.mark.parametrize("late", [0, 60])
def test_drift_and_variance_are_those_of_the_last_quiet_look(late: int) -> None:
    """The drift is a root mean square and the variance a mean; a series that comes late holds nothing up."""
    values = np.random.default_rng(0).standard_normal((100, 3))
    values[:, 1] += 0.02 * np.arange(100)
    values[:late, 2] = np.nan
    state = watch(values)
    _, moments, drift, variance = by_hand(values)
    assert state.drift == pytest.approx(drift, rel=1e-12)
    assert state.variance == pytest.approx(variance, rel=1e-12)
    assert drift > 1.2 * abs(float(np.mean(moments.mean))), "or a plain mean would do"
    assert state.armed_at == 10 * LEARNING


def test_nothing_is_judged_before_fifty_residuals() -> None:
    values = np.random.default_rng(0).standard_normal((LEARNING + 50, 3))
    assert watch(values[:-1]).variance == watch(values[:-1]).drift == 0.0 or np.isnan(
        watch(values[:-1]).drift
    )
    assert watch(values).variance == pytest.approx(by_hand(values)[3], rel=1e-12)
    assert detector.FEWEST == 50

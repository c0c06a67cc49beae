"""The CUSUM of a loss against its recursion, written out for a list."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.measures.change.loss import LossCusum

QUIET = [2.0 + (-1) ** number for number in range(200)]
"""Mean 2, deviation 1."""


def armed() -> LossCusum:
    rule = LossCusum()
    assert not any(rule.add(loss) for loss in QUIET)
    return rule


def test_by_hand() -> None:
    """A loss of 4 has a score of 2 and adds 1: the sixth alarms, S stops at 12 and then falls again."""
    rule = armed()
    assert [rule.add(4.0) for _ in range(6)] == [False] * 5 + [True]
    assert rule.total == pytest.approx(6.0)
    for _ in range(20):
        rule.add(4.0)
    assert rule.total == pytest.approx(12.0)
    assert len(rule.excursion) == 26
    assert list(rule.reference) == QUIET, "a loss that rises is not its own reference"
    assert [rule.add(2.0) for _ in range(12)] == [True] * 6 + [False] * 6
    assert rule.total == pytest.approx(0.0, abs=1e-12)


def test_an_excursion_joins_when_it_has_ended() -> None:
    rule = armed()
    for loss in (4.0, 4.0, 1.0):  # S = 1, 2, 0
        rule.add(loss)
    assert list(rule.reference) == [*QUIET[3:], 4.0, 4.0, 1.0]
    assert not rule.excursion


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-0.01, 0.02))
def test_the_recursion(seed: int, slope: float) -> None:
    random = np.random.default_rng(seed)
    losses = (2 + slope * np.arange(420) + random.standard_t(4, 420)).tolist()
    rule, reference, waiting, total = LossCusum(), losses[:200], [], 0.0
    for loss in losses[:200]:
        rule.add(loss)
    for loss in losses[200:]:
        score = (loss - statistics.fmean(reference)) / statistics.pstdev(reference)
        total = total + score - 1
        total = 0.0 if total < 0 else 12.0 if total > 12 else total
        waiting.append(loss)
        if total == 0:
            reference, waiting = (reference + waiting)[-200:], []
        assert rule.add(loss) == (total >= 6)
        assert rule.total == pytest.approx(total, abs=1e-9)

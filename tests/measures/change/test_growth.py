"""Growth of norms: what is told, what is usual, and where it leads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from joma.measures.change.growth import (
    FLOOR,
    HIGH,
    LOW,
    MIDDLE,
    SETTLING,
    TIMES,
    WINDOW,
    GrowthState,
    add_reading,
    forecast_crossing,
)


def feed(values: np.ndarray, every: int = 5) -> list:
    state, found = GrowthState(), []
    for number, row in enumerate(values):
        state, growth = add_reading(state, number * every, np.atleast_1d(row))
        found.append(growth)
    return found


def test_a_rise_is_held_against_the_floor_and_against_what_is_usual() -> None:
    steps = np.arange(0, 600, 5)
    doubling = feed(np.where(steps > 400, (steps - 400) * math.log(2) / WINDOW, 0.0))
    told = [growth.step for growth in doubling if growth.score >= 1]
    # ln 2 within a window is a little less than the floor.
    assert math.log(2) < FLOOR
    assert not told
    faster = feed(np.where(steps > 400, (steps - 400) * 0.05, 0.0))
    first = next(growth for growth in faster if growth.score >= 1)
    assert first.step == 415  # 0.75 from step 400 on
    assert first.rise == pytest.approx(0.75)
    assert first.rate == pytest.approx(0.05)
    # A run that always grows by 0.4 in a window has to grow by three times that.
    usual = 0.4 / WINDOW
    base = usual * steps
    quiet = feed(base + np.where(steps > 400, (steps - 400) * 0.03, 0.0))
    assert max(growth.score for growth in quiet if growth.score == growth.score) < 1
    assert quiet[-1].usual > 0.3
    assert TIMES * 0.4 > FLOOR


def test_nothing_is_told_before_the_run_has_settled_and_what_slows_down_is_none() -> None:
    steps = np.arange(0, 600, 5)
    early = feed(0.2 * np.minimum(steps, SETTLING))
    assert all(not growth.score >= 1 for growth in early)
    assert math.isnan(early[(SETTLING + WINDOW) // 5].score)
    jump = feed(np.where(steps >= 400, 1.0, 0.0))
    # A single jump falls into the second half of its window for two readings only.
    assert {growth.step for growth in jump if growth.score >= 1} == {400, 405}


def test_it_does_not_depend_on_scale_and_a_missing_value_shows_no_rise() -> None:
    steps = np.arange(0, 500, 5)
    rows = np.stack([0.05 * np.maximum(steps - 400, 0), np.full(len(steps), np.nan)], 1)
    one, other = feed(rows), feed(rows + 7.0)
    assert [g.score for g in one] == pytest.approx([g.score for g in other], nan_ok=True)
    assert one[-1].head == 0
    assert one[-1].rises[1] == 0


def test_a_forecast_is_between_its_bounds() -> None:
    found = forecast_crossing(100, 10.0, 100.0, math.log(10) / 50)
    assert found is not None
    assert (found.low, found.at, found.high) == pytest.approx(
        (100 + 50 * LOW, 100 + 50 * MIDDLE, 100 + 50 * HIGH)
    )
    assert forecast_crossing(100, 10.0, 100.0, 0.0) is None
    assert forecast_crossing(100, 0.5, 100.0, 1.0) is None
    reached = forecast_crossing(100, 200.0, 100.0, 1.0)
    assert reached is not None
    assert reached.at == 100

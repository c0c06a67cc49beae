"""Valleys of a curve: the quick search against the definition, and the smoothing against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.measures.bounce import valleys
from joma.measures.bounce.slow_noise import _smooth_curves
from joma.measures.bounce.valleys import dip_at, smooth, transients


@given(st.lists(st.integers(0, 6), min_size=3, max_size=30), st.integers(-1, 4))
def test_transients_are_the_valleys_that_recover(values: list[int], least: int) -> None:
    level, time = np.array(values, float), np.arange(len(values)) * 2.0
    floors = [i for i in range(1, len(values) - 1) if level[i] < level[i - 1] and level[i] <= level[i + 1]]
    dips = [dip_at(time, level, floor) for floor in floors]
    expected = [dip for dip in dips if min(dip.depth, dip.rebound) > least]
    assert list(transients(time, level, float(time[-1]), least)) == expected


def test_a_transient_is_beyond_the_noise_and_not_at_it() -> None:
    time, level = np.arange(7.0), np.array([3.0, 2.0, 3.0, 2.0, 1.0, 0.0, 0.0])
    assert [dip.step for dip in transients(time, level, 5.0, 0.99)] == [1.0]
    assert transients(time, level, 5.0, 1.0) == ()


def test_long_windows_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = np.random.default_rng(0).normal(size=500)
    direct = smooth(curve, 101)
    monkeypatch.setattr(valleys, "_DIRECT_PRODUCTS", 0)
    assert smooth(curve, 101) == pytest.approx(direct, abs=1e-12)


@pytest.mark.parametrize("window", [1, 3, 7, 31])
def test_many_curves_are_smoothed_as_one(window: int) -> None:
    curves = np.random.default_rng(0).normal(size=(5, 40))
    assert _smooth_curves(curves, window) == pytest.approx(np.stack([smooth(one, window) for one in curves]))

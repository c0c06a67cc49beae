from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from joma.errors import InputError
from joma.measures.bounce import bounce, smooth

STEPS = np.arange(80) * 25.0


def valley(steps: NDArray[np.float64], depth: float, at: float, rebound: float) -> NDArray[np.float64]:
    down = np.clip(steps / at, 0, 1)
    up = np.clip((steps - at) / (steps[-1] - at), 0, 1)
    return 2.5 - depth * down + rebound * up


def autocorrelated(random: np.random.Generator, size: int, scale: float) -> NDArray[np.float64]:
    noise = np.zeros(size)
    for i in range(1, size):
        noise[i] = 0.5 * noise[i - 1] + random.normal()
    return scale * noise


def test_finds_dip_depth_and_rebound() -> None:
    random = np.random.default_rng(0)
    found = bounce(STEPS, valley(STEPS, 0.8, 600, 0.4) + 0.01 * random.normal(size=80))
    assert found.main.step == pytest.approx(600, abs=50)
    assert found.main.depth == pytest.approx(0.8, abs=0.05)
    assert found.main.rebound == pytest.approx(0.4, abs=0.05)
    assert found.main.rebound_step > 1800
    assert found.dip_probability < 0.01
    assert found.rebound_probability < 0.01
    assert found.noise == pytest.approx(0.01, abs=0.007)
    assert found.rebound_null < 0.1 < found.main.rebound
    assert not found.transients


def test_finds_an_early_transient_before_the_main_dip() -> None:
    curve = valley(STEPS, 0.8, 1200, 0.3)
    curve[4:12] -= 0.3 * np.sin(np.linspace(0, np.pi, 8))
    random = np.random.default_rng(1)
    found = bounce(STEPS, curve + 0.005 * random.normal(size=80))
    assert found.main.step == pytest.approx(1200, abs=50)
    assert len(found.transients) == 1
    assert found.transients[0].step == pytest.approx(STEPS[8], abs=60)
    assert found.transients[0].rebound > 0.1


@pytest.mark.parametrize("null", ["flat", "shuffled"])
def test_false_alarms_are_rare_on_curves_that_only_fall(null: str) -> None:
    alarms = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        curve = 2.5 - 0.8 * (1 - np.exp(-STEPS / 500)) + autocorrelated(random, 80, 0.02)
        found = bounce(STEPS, curve, null=null, resamples=200)
        alarms += found.rebound_probability < 0.05
    # A fair test at 5 % alarms 3 times in 60; 9 or more would be a chance of 1 in 400.
    assert alarms <= 8


def test_true_bounces_are_found_through_the_same_noise() -> None:
    hits = 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        curve = valley(STEPS, 0.8, 700, 0.25) + autocorrelated(random, 80, 0.02)
        hits += bounce(STEPS, curve, resamples=200).rebound_probability < 0.05
    assert hits >= 28


def test_pure_noise_has_no_significant_dip_most_of_the_time() -> None:
    alarms = sum(
        bounce(STEPS, np.random.default_rng(seed).normal(size=80), resamples=200).dip_probability < 0.05
        for seed in range(60)
    )
    assert alarms <= 8


@given(st.lists(st.floats(-3, 3), min_size=8, max_size=40), st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_scale(values: list[float], shift: float, scale: float) -> None:
    steps = np.arange(len(values))
    a = bounce(steps, values, resamples=20)
    b = bounce(steps, np.array(values) * scale + shift, resamples=20)
    assert b.main.depth == pytest.approx(scale * a.main.depth, abs=1e-9)
    assert b.main.rebound == pytest.approx(scale * a.main.rebound, abs=1e-9)
    assert a.main.depth >= 0
    assert a.main.rebound >= 0


def test_same_seed_same_result() -> None:
    curve = np.random.default_rng(3).normal(size=50)
    assert bounce(np.arange(50), curve) == bounce(np.arange(50), curve)


def test_smooth_keeps_constants_and_its_length() -> None:
    assert smooth(np.full(9, 2.0), 5) == pytest.approx(np.full(9, 2.0))
    assert smooth([0, 0, 4, 0, 0], 3).tolist() == pytest.approx([0, 1, 2, 1, 0])


@pytest.mark.parametrize(
    ("steps", "values", "options", "message"),
    [
        (range(9), range(8), {}, "equally long"),
        (range(7), range(7), {}, "7 points are too few"),
        (range(9), [0] * 8 + [float("nan")], {}, "value at step 8 is not finite"),
        ([0, 1, 2, 3, 4, 5, 6, 7, 7], range(9), {}, "steps must increase"),
        (range(9), range(9), {"window": 4}, "window = 4 must be odd"),
        (range(9), range(9), {"null": "bootstrap"}, "null = 'bootstrap'"),
    ],
)
def test_bad_input(steps: list[float], values: list[float], options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bounce(list(steps), list(values), **options)  # type: ignore[arg-type]

"""joma.bounce: what it finds, what its probability means, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import savgol_filter
from scipy.stats import median_abs_deviation

from joma.core.errors import InputError
from joma.measures.bounce import bounce, found, slow_noise, smooth

STEPS = np.arange(80) * 25.0


def valley(steps: NDArray[np.float64], depth: float, at: float, rebound: float) -> NDArray[np.float64]:
    down = np.clip(steps / at, 0, 1)
    up = np.clip((steps - at) / (steps[-1] - at), 0, 1)
    return 2.5 - depth * down + rebound * up


def autocorrelated(
    random: np.random.Generator, size: int, coefficient: float, deviation: float
) -> NDArray[np.float64]:
    noise = np.array(random.normal(size=size))
    for i in range(1, size):
        noise[i] = coefficient * noise[i - 1] + np.sqrt(1 - coefficient**2) * noise[i]
    return deviation * noise


def test_finds_dip_depth_and_rebound() -> None:
    random = np.random.default_rng(0)
    found = bounce(STEPS, valley(STEPS, 0.8, 600, 0.4) + 0.01 * random.normal(size=80))
    assert found.main.step == pytest.approx(600, abs=50)
    assert found.main.depth == pytest.approx(0.8, abs=0.05)
    assert found.main.rebound == pytest.approx(0.4, abs=0.05)
    assert found.main.rebound_step > 1800
    assert found.dip_probability < 0.01
    assert found.rebound_probability < 0.03  # 40 deviations of white noise, set against a random walk
    assert found.noise == pytest.approx(0.01, abs=0.007)
    assert found.rebound_null < found.main.rebound
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


def test_a_fall_is_a_dip_and_no_rebound() -> None:
    random = np.random.default_rng(0)
    found = bounce(STEPS, 2.5 - 0.8 * (1 - np.exp(-STEPS / 500)) + 0.02 * random.normal(size=80))
    assert found.dip_probability < 0.01
    assert found.rebound_probability > 0.2
    assert not found.cannot_tell


def test_one_curve_cannot_tell_a_rebound_from_a_random_walk() -> None:
    """Five deviations of slow noise: the likeliest noise does not make it, a slower one would."""
    random = np.random.default_rng(11)
    undecided = 0
    for _ in range(30):
        noise = autocorrelated(random, 80, 0.8, 0.05)
        found = bounce(STEPS, valley(STEPS, 0.8, 900, 0.3) + noise)
        undecided += found.cannot_tell
        assert not (found.cannot_tell and found.rebound_probability < 0.05)
        assert found.likeliest is not None
    assert undecided >= 10


def test_five_runs_together_see_what_one_cannot() -> None:
    random = np.random.default_rng(12)
    runs = np.stack([valley(STEPS, 0.8, 900, 0.3) + autocorrelated(random, 80, 0.8, 0.05) for _ in range(5)])
    together = bounce(STEPS, runs)
    assert together.rebound_probability < 0.01
    assert together.likeliest is None
    assert together.main == bounce(STEPS, runs.mean(axis=0)).main


def test_the_null_is_where_the_probability_is_one_in_twenty() -> None:
    random = np.random.default_rng(13)
    noise = 0.02 * random.normal(size=(40, 80))
    for one in noise:
        found = bounce(STEPS, valley(STEPS, 0.8, 900, 0.05) + one)
        assert (found.main.rebound > found.rebound_null) == (found.rebound_probability < 0.05)


@pytest.mark.parametrize("points", [8, 9, 29, 30, 31, 1001, 5000])
@pytest.mark.parametrize("made", [np.zeros, np.ones, np.arange, lambda n: np.arange(n)[::-1]])
def test_curves_without_noise(points: int, made: Callable[[int], NDArray[np.float64]]) -> None:
    found = bounce(range(points), made(points))
    assert found.rebound_probability == (1.0 if found.main.rebound == 0 else found.rebound_probability)
    assert 0 < found.rebound_probability <= 1
    assert found.noise == pytest.approx(0, abs=1e-9 * points)


def test_a_single_outlier_is_no_rebound() -> None:
    curve = 0.01 * np.random.default_rng(0).normal(size=100)
    curve[60] = 1.0
    assert bounce(np.arange(100), curve).rebound_probability > 0.05


def test_long_curves_take_a_time_near_linear() -> None:
    random = np.random.default_rng(1)
    curves = {n: np.cumsum(random.normal(size=n)) for n in (20_000, 200_000)}
    bounce(np.arange(20_000), curves[20_000])  # compiled and warm
    times = {}
    for n, curve in curves.items():
        began = time.process_time()
        bounce(np.arange(n), curve)
        times[n] = time.process_time() - began
    assert times[200_000] < 30 * max(times[20_000], 0.05)


def test_a_first_call_is_quick() -> None:
    curve = np.random.default_rng(1).normal(size=150)
    slow_noise._null.cache_clear()
    began = time.process_time()
    bounce(np.arange(150), curve)
    assert time.process_time() - began < 0.2  # 0.06 alone on a machine; half of it is others' caches


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
        (range(9), range(9), {"window": 11}, "window = 11 must be odd and at most the 9 points"),
        (range(9), [range(9)] * 2, {}, "2 rows of values"),
        (range(9), [[range(9)] * 3], {}, "equally long"),
        (range(9), [1e300] * 9, {}, "values reach 1e\\+300"),
        (range(9), [10**400] * 9, {}, "not an array of real numbers"),
        (range(9), np.ma.array(np.arange(9.0), mask=[0, 1] + [0] * 7), {}, "masked in 1 entries"),
        (range(9), torch.empty(9, device="meta"), {}, "meta device"),
    ],
)
def test_bad_input(steps: list[float], values: list[float], options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bounce(steps, values, **options)  # type: ignore[arg-type]


CURVE = valley(STEPS, 0.8, 600, 0.4) + 0.0625 * (np.arange(80) % 3)


@pytest.mark.parametrize(
    "given",
    [
        CURVE.tolist(),
        CURVE.astype(">f8"),
        np.ascontiguousarray(CURVE[::-1])[::-1],
        CURVE.astype(np.longdouble),
        np.ma.array(CURVE),
        torch.tensor(CURVE, requires_grad=True),
        torch.tensor(CURVE).to_sparse(),
    ],
)
def test_every_kind_of_array_gives_the_same(given: object) -> None:
    assert bounce(STEPS, given) == bounce(STEPS, CURVE)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision(dtype: torch.dtype) -> None:
    given = torch.tensor(CURVE).to(dtype)
    assert bounce(torch.tensor(STEPS), given) == bounce(STEPS, given.double().numpy())


@pytest.mark.parametrize("points", [30, 41, 200])
def test_the_noise_is_the_median_deviation_from_parabolas(points: int) -> None:
    curve = np.random.default_rng(points).normal(size=points).cumsum()
    width = max(5, 2 * (points // 8) + 1)
    inner = slice(width // 2, points - width // 2)
    residuals = (curve - savgol_filter(curve, width, 2))[inner]
    assert found._noise(curve) == pytest.approx(median_abs_deviation(residuals, scale="normal"), rel=1e-4)


@pytest.mark.parametrize("height", [0.3, 1.0, 30.0])
def test_a_rebound_that_rests_on_the_last_point_is_no_detection(height: float) -> None:
    """And the mirror image, a dip that rests on the first."""
    random = np.random.default_rng(2)
    undecided = 0
    for _ in range(20):
        curve = 3 * np.exp(-np.arange(40) / 12) + 0.02 * random.normal(size=40)
        curve[-1] += height
        found = bounce(np.arange(40), curve)
        assert found.rebound_probability >= 0.05
        undecided += found.cannot_tell
        assert bounce(np.arange(40), curve[::-1]).dip_probability >= 0.05
    assert undecided > 10


def test_a_rise_over_the_last_points_is_a_rebound() -> None:
    curve = 3 * np.exp(-np.arange(40) / 12) + 0.02 * np.random.default_rng(2).normal(size=40)
    curve[-8:] += np.linspace(0.125, 1, 8)
    assert bounce(np.arange(40), curve).rebound_probability < 0.05


@pytest.mark.parametrize("copies", [3, 7])
def test_copies_of_a_run_tell_no_more_than_the_run(copies: int) -> None:
    curve = valley(STEPS, 0.8, 900, 0.3) + autocorrelated(np.random.default_rng(3), 80, 0.8, 0.05)
    one = bounce(STEPS, curve)
    assert one.rebound_probability > 0
    together = bounce(STEPS, np.tile(curve, (copies, 1)))
    assert together.rebound_probability == pytest.approx(one.rebound_probability, rel=1e-9)
    moved = bounce(STEPS, curve + np.arange(copies)[:, None])
    assert moved.rebound_probability == pytest.approx(one.rebound_probability, abs=0.002)
    assert moved.likeliest == one.likeliest


def test_a_copy_among_runs_does_not_count() -> None:
    random = np.random.default_rng(12)
    runs = np.stack([valley(STEPS, 0.8, 900, 0.3) + autocorrelated(random, 80, 0.8, 0.1) for _ in range(4)])
    again = bounce(STEPS, np.concatenate([runs, runs[:2] + 1.0]))
    assert again.rebound_probability == bounce(STEPS, runs).rebound_probability

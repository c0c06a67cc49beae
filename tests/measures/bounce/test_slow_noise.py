"""The null of one curve: its noise is what it is said to be, and slow noise is not called a rebound."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from bounce_rates import FALLING, REBOUND, made, rate, rates, rebounds
from joma.measures.bounce import bounce, slow_noise, smooth
from joma.measures.bounce.several import rise_together
from joma.measures.bounce.slow_noise import LEVEL, exceedance, one_in_twenty


@pytest.mark.parametrize("kind", slow_noise._KINDS, ids=lambda kind: kind.name)
def test_noise_of_each_kind_has_its_covariance(kind: slow_noise._Kind) -> None:
    """phi^|i - j| of an autoregression of deviation 1, min(i, j)/n of a walk that ends with deviation 1."""
    points = 6
    curves = slow_noise._noise(kind, 60_000, points, np.random.default_rng(1))
    steps = np.arange(points)
    fast = 0 if kind.memory == 1 else kind.memory ** np.abs(np.subtract.outer(steps, steps))
    truth = fast + kind.wander**2 * np.minimum.outer(steps + 1, steps + 1) / points
    assert np.cov(curves.T) == pytest.approx(truth, abs=0.03 * truth.max())


def test_the_probability_counts_what_rises_as_far_or_further() -> None:
    """Two kinds of three curves, weighed 1 to 3: (1 + weighed number)/(1 + 3)."""
    rises, weights = np.array([[1.0, 2.0, 2.0], [2.0, 4.0, 5.0]]), np.array([0.25, 0.75])
    wanted = [1.0, (1 + 0.5 + 2.25) / 4, (1 + 1.5) / 4, (1 + 0.75) / 4, 0.25]
    assert [exceedance(rises, weights, move) for move in (0.5, 2.0, 3.0, 4.5, 6.0)] == pytest.approx(wanted)
    assert exceedance(np.zeros((2, 3)), weights, 0.0) == 1.0
    assert exceedance(np.zeros((2, 3)), weights, 1.0) == 0.25


@given(st.integers(0, 2**32 - 1))
def test_the_null_is_the_largest_rise_that_is_not_significant(seed: int) -> None:
    random = np.random.default_rng(seed)
    rises, weights = random.random((3, 100)), random.dirichlet(np.ones(3))
    edge = one_in_twenty(rises, weights)
    assert exceedance(rises, weights, edge) >= LEVEL > exceedance(rises, weights, edge * (1 + 1e-12))


@pytest.mark.parametrize("points", [8, 20, 37, 150])
def test_the_spectrum_is_the_mean_power_of_cosines(points: int) -> None:
    curve = np.random.default_rng(points).normal(size=points)
    trend = slow_noise._splines(points)
    _, rest = slow_noise._clip(curve[None] - (curve @ trend) @ trend.T)
    place = (np.arange(points) + 0.5) / points
    cosines = np.sqrt(2 / points) * np.cos(np.pi * np.outer(np.arange(points), place))
    powers = (cosines @ rest[0]) ** 2
    bands = [powers[begin:end].mean() for begin, end in pairwise([*slow_noise._bands(points), points])]
    (spectrum,) = slow_noise._noise_of(curve[None]).spectrum
    assert spectrum == pytest.approx(np.log(bands[:-1]) - np.log(bands[-1]), abs=1e-9)
    widths = np.diff([*slow_noise._bands(points), points])
    assert widths.min() >= 3
    assert slow_noise._bands(points)[0] == 1


def test_the_deviation_is_that_of_the_noisiest_third_without_outliers() -> None:
    random = np.random.default_rng(3)
    rest = np.concatenate([random.normal(size=20), 3 * random.normal(size=20), random.normal(size=20)])
    rest[5] = 50.0
    deviation, clipped = slow_noise._clip(rest[None])
    assert deviation[0] == pytest.approx(np.sqrt(np.mean(rest[20:40] ** 2)))
    bound = 4 * 1.4826 * np.sort(np.abs(rest[:20]))[10]
    assert clipped[0, 5] == pytest.approx(bound)
    assert np.delete(clipped[0], 5) == pytest.approx(np.delete(rest, 5))
    few, _ = slow_noise._clip(rest[None, 20:40])
    assert few[0] == pytest.approx(np.sqrt(np.mean(rest[20:40] ** 2))), "fewer than 30 points are one part"


def test_the_weights_are_likelihoods_of_the_spectrum() -> None:
    """Against SciPy's normal law and the mean over kinds, computed here anew with their own random curves."""
    points, window = 60, 3
    curve = np.random.default_rng(4).normal(size=points)
    (found,) = slow_noise.slow_noise(curve[None], window, 4000, 0)
    own = slow_noise._noise_of(curve[None])
    level = smooth(curve, window)
    rise = level[level.argmin() :].max() - level.min()
    weights, shares = [], []
    for kind in slow_noise._KINDS:
        drawn = slow_noise._noise(kind, 4000, points, np.random.default_rng(99))
        theirs = slow_noise._noise_of(drawn)
        law = multivariate_normal(theirs.spectrum.mean(axis=0), np.cov(theirs.spectrum.T))
        weights.append(kind.weight * (points / 100) ** kind.growth * law.pdf(own.spectrum[0]))
        levels = np.stack([smooth(one, window) for one in drawn])
        rises = np.array([max(one[j] - one[: j + 1].min() for j in range(points)) for one in levels])
        ratio = np.median(theirs.coarse / theirs.fine)
        unit, units = (np.minimum(one.coarse, 1.15 * ratio * one.fine) for one in (own, theirs))
        shares.append(np.mean(rises / units >= rise / unit))
    assert found.rise.probability == pytest.approx(np.average(shares, weights=weights), abs=0.03)
    without = np.array(weights) / [kind.weight * (points / 100) ** kind.growth for kind in slow_noise._KINDS]
    assert found.likeliest == slow_noise._KINDS[int(np.argmax(without))].name
    likely = min(share for share, one in zip(shares, without, strict=True) if one > 0.1 * max(without))
    assert found.rise.likely == pytest.approx(likely, abs=0.03)


def test_a_walk_is_known_from_fast_noise() -> None:
    random = np.random.default_rng(5)
    walk, fast = np.cumsum(random.normal(size=(20, 150)), axis=1), random.normal(size=(20, 150))
    walks = [one.likeliest for one in slow_noise.slow_noise(walk, 7, 400, 0)]
    others = [one.likeliest for one in slow_noise.slow_noise(fast, 7, 400, 0)]
    assert walks.count("random walk") >= 14
    assert "random walk" not in others


def test_a_fall_is_judged_as_a_rise_of_the_reverse() -> None:
    curve = np.cumsum(np.random.default_rng(2).normal(size=100))
    ramp = np.concatenate([np.linspace(1, 0, 50), np.linspace(0, 3, 50)]) + 0.02 * curve / 10
    (found,) = slow_noise.slow_noise(ramp[None], 5, 1000, 0)
    assert found.fall.probability < 0.05
    assert found.rise.probability < 0.05


@pytest.mark.parametrize("runs", [1, 5])
def test_the_simulation_is_of_what_bounce_says(runs: int) -> None:
    curves = made(FALLING[0], 60, "walk", 60 * runs, seed=8)
    groups = curves if runs == 1 else curves.reshape(60, runs, 60)
    found = [bounce(np.arange(60), group) for group in groups]
    shares = (
        np.mean([one.rebound_probability < 0.05 for one in found]),
        np.mean([one.cannot_tell for one in found]),
    )
    assert rebounds(curves, runs) == pytest.approx(shares)


def test_noise_is_rarely_called_a_rebound() -> None:
    """The cells nearest their limits, 150 curves each; the whole table is the slow test's."""
    for shape, points, kind in (
        (FALLING[0], 60, "walk"),
        (FALLING[0], 150, "AR(.5)"),
        (FALLING[0], 150, "1/f"),
        (FALLING[0], 60, "white"),
    ):
        cell = rate(shape, points, kind, 1, 150, seed=3)
        assert cell.within_limits(slack=0.04), cell


def test_rebounds_are_found() -> None:
    assert rate(REBOUND, 100, "AR(.5)", 1, 150, seed=3).within_limits(slack=0.05)
    assert rate(REBOUND, 100, "AR(.5)", 5, 60, seed=3).within_limits(slack=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 5])
def test_the_simulated_rates(runs: int) -> None:
    """200 curves a cell: two standard errors of a rate of 7 % are 3.6 %, of 80 % they are 5.6 %."""
    over = [cell for cell in rates(200, runs) if not cell.within_limits(slack=0.036)]
    assert not over


def test_rise_together_by_hand() -> None:
    """Three curves; the first chooses 0 to 2, the others rise there by 1 and 2, and so on."""
    levels = np.array([[0.0, 1.0, 3.0], [0.0, 0.5, 1.0], [1.0, 0.0, 3.0]])
    # Chooser 0: places 0, 2; rises 1, 2: t = 1.5 / 0.5 = 3 of 1 degree: p = 1/2 - atan(3)/pi.
    # Chooser 1: the same places; rises 3, 2: t = 2.5 / 0.5 = 5. Chooser 2: 1 to 2; rises 2, 0.5: t = 5/3.
    p = [0.5 - np.arctan(t) / np.pi for t in (3, 5, 5 / 3)]
    found = rise_together(levels)
    assert found.probability == pytest.approx(2 * p[0], rel=1e-9)
    assert found.likely == pytest.approx(p[0], rel=1e-9)
    # The mean rise from which twice the p-value is 0.05: t of 0.025 with one degree is 12.706.
    assert found.null == pytest.approx(12.7062 * 0.5, rel=1e-4)


def test_rises_that_agree_exactly_have_the_probability_of_their_signs() -> None:
    """Three others that all rise: one half to the third, doubled like every median."""
    found = rise_together(np.tile([2.0, 1.0, 3.0], (4, 1)))
    assert (found.likely, found.probability) == (0.125, 0.25)
    assert rise_together(np.tile([3.0, 2.0, 1.0], (4, 1))).probability == 1

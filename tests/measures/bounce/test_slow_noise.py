"""The null of one curve: its noise is what it is said to be, and slow noise is not called a rebound."""

from __future__ import annotations

import numpy as np
import pytest

from bounce_rates import FALLING, REBOUND, made, rate, rates, rebounds
from joma.measures.bounce import bounce, slow_noise
from joma.measures.bounce.several import rise_together


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_bins_of_an_autoregression_have_its_covariance(phi: float, width: int) -> None:
    means = slow_noise._autoregressions(phi, (40_000, 4), width, seed=1)
    lags = np.abs(np.subtract.outer(np.arange(4 * width), np.arange(4 * width)))
    average = np.kron(np.eye(4), np.full((1, width), 1 / width))
    truth = average @ (phi**lags / (1 - phi**2)) @ average.T
    assert np.cov(means.T) == pytest.approx(truth, abs=0.05 * truth.max())


def test_bins_of_a_random_walk_have_its_covariance() -> None:
    means = slow_noise._autoregressions(1.0, (40_000, 4), 3, seed=1)
    times = np.arange(1, 13)
    average = np.kron(np.eye(4), np.full((1, 3), 1 / 3))
    truth = average @ np.minimum.outer(times, times) @ average.T
    assert np.cov(means.T) == pytest.approx(truth, abs=0.05 * truth.max())


def test_the_probability_counts_what_rises_as_far_or_further() -> None:
    null = slow_noise._Null(np.zeros(3), np.array([1.0, 2.0, 2.0]), 1.0, 2.0)
    assert [null.exceeded(rise) for rise in (0.5, 2.0, 2.5)] == [1.0, 0.75, 0.25]


def test_slower_noise_rises_further_and_looks_slower() -> None:
    """What the search for the limit of phi, and the probability at the limit alone, rest on."""
    nulls = [slow_noise._null(i, 60, 1, 3, 1000, 0) for i in range(len(slow_noise._COEFFICIENTS))]
    rises = [float(np.quantile(null.rises, 0.95)) for null in nulls]
    correlations = [float(np.median(null.correlations)) for null in nulls]
    assert rises == sorted(rises)
    assert np.all(np.diff(correlations) > -0.01), "from .95 on they look alike"


@pytest.mark.parametrize(("phi", "within"), [(0.0, 0.2), (0.5, 0.25), (0.9, 0.1), (1.0, 0.03)])
def test_the_memory_is_median_unbiased_and_its_limit_holds(phi: float, within: float) -> None:
    random = np.random.default_rng(5)
    curves = slow_noise._autoregressions(phi, (200, 150), 1, seed=int(random.integers(1000)))
    found = slow_noise.slow_noise(curves, 7, 1000, 0)
    assert np.median([one.memory for one in found]) == pytest.approx(phi, abs=within)
    assert np.mean([one.memory_limit >= phi for one in found]) >= 0.9


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


def test_runs_that_agree_exactly() -> None:
    assert rise_together(np.tile([2.0, 1.0, 3.0], (4, 1))).probability == 0
    assert rise_together(np.tile([3.0, 2.0, 1.0], (4, 1))).probability == 1


@pytest.mark.parametrize(("phi", "width"), [(0.5, 4), (0.9, 7), (0.0, 3)])
def test_means_over_bins_are_those_of_an_autoregression(phi: float, width: int) -> None:
    means = slow_noise._autoregressions(phi, (500_000, 3), width, 0)
    apart = np.abs(np.subtract.outer(np.arange(2 * width), np.arange(2 * width)))
    covariance = phi**apart / (1 - phi**2)
    own, next_one = (covariance[:width, part].mean() for part in (slice(0, width), slice(width, None)))
    assert means[:, 1].var() == pytest.approx(own, rel=0.006)
    assert (means[:, 1] * means[:, 2]).mean() == pytest.approx(next_one, abs=0.006 * own)

"""The boundary of the bounce: golden values, a dense eigensolver, and simulated blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.dynamics.block_end import draw_settings, final_course
from joma.theory.block_boundary import critical_ratio, final_slope, slowest
from joma.theory.block_salience import convergence_rate
from joma.theory.drift import plant
from joma.theory.isotropic import RELU, HomogeneousGate
from joma.theory.isotropic_laws import Gaussian


@pytest.mark.parametrize("case", ["3_2.4_34", "10_12_34", "10_12_8", "5_40_5", "10_200_3"])
def test_the_boundary_is_the_golden_one(golden, case):
    wanted = golden(f"phase_{case}")
    mu = np.linspace(1.0, wanted["inputs"]["spread"], wanted["inputs"]["n"])
    mu /= np.linalg.norm(mu)
    kappa = (wanted["inputs"]["saliency"] / mu.max()) ** 2
    assert critical_ratio(mu, kappa=kappa) == pytest.approx(wanted["expected"], rel=wanted["rtol"])


@pytest.mark.parametrize("gate", [RELU, HomogeneousGate(0.1, 1.0)])
@pytest.mark.parametrize(("distance", "rho"), [(1.1, -1.0), (0.7, -0.4), (2.0, -1.6)])
def test_the_eigenvalues_of_gaussian_data_have_the_ratio_rho_minus_squared(gate, distance, rho):
    c = plant(Gaussian(), gate, [0.9, 0.4, 0.2], distance=distance, rho_minus=rho).stiffness
    assert c.along / c.transverse == pytest.approx(rho**2, rel=1e-11)


vectors = st.lists(st.floats(0.3, 12.0), min_size=2, max_size=7).filter(
    lambda mu: min(abs(a - b) for i, a in enumerate(mu) for b in mu[:i]) > 1e-3
)


@settings(max_examples=40, deadline=None)
@given(vectors, st.one_of(st.just(1.0), st.floats(0.01, 20.0)))
def test_the_slowest_direction_is_a_dense_solvers(mu, ratio):
    mu = np.array(mu)
    d, m = convergence_rate(mu), mu / np.linalg.norm(mu)
    root = np.sqrt(d)
    # D C is similar to a symmetric matrix.
    values, vectors = np.linalg.eigh(np.diag(d) + (ratio - 1.0) * np.outer(root * m, root * m))
    found = slowest(mu, ratio)
    assert found.rate == pytest.approx(values[0], rel=1e-9)
    wanted = root * vectors[:, 0]
    wanted *= np.sign(np.sum(wanted * m / d)) / np.linalg.norm(wanted)
    gap = (values[1] - values[0]) / values[-1]
    np.testing.assert_allclose(found.direction, wanted, atol=1e-11 / gap)


@settings(max_examples=40, deadline=None)
@given(vectors, st.floats(0.3, 3.0))
def test_there_is_one_boundary_below_one_and_above_one_all_bounce(mu, kappa):
    boundary = critical_ratio(mu, kappa=kappa)
    assert 0 < boundary < 1
    slopes = [final_slope(mu, factor * boundary, kappa=kappa) for factor in (0.2, 0.99, 1.01)]
    assert max(slopes[:2]) < 0 < slopes[2]
    assert all(final_slope(mu, chi, kappa=kappa) > 0 for chi in (1.0, 1.5, 10.0, 1e3))
    # Only sqrt(kappa) |mu| matters.
    scaled = critical_ratio(-np.sqrt(kappa) * np.array(mu)[::-1])
    assert scaled == pytest.approx(boundary, rel=1e-9)


def test_components_that_are_alike_count_as_often_as_they_are():
    near = critical_ratio([3.0, 1.0, 1.0 + 1e-9, 1.0 - 1e-9])
    assert critical_ratio([3.0, 1.0, 1.0, 1.0]) == pytest.approx(near, rel=1e-6)
    assert critical_ratio([3.0, 1.0]) != pytest.approx(near, rel=1e-2)
    assert slowest([3.0, 1.0, -1.0], 0.2).direction[1:] == pytest.approx(
        np.array([1.0, -1.0]) * slowest([3.0, 1.0, 1.0], 0.2).direction[2]
    )


def _misses(settings: list[tuple[np.ndarray, float, float]]) -> list[int]:
    """Where the simulated block does not end falling 5 % below the boundary and rising 5 % above it."""
    missed = []
    for index, (mu, kappa, distance) in enumerate(settings):
        rho = -float(np.sqrt(critical_ratio(mu, kappa=kappa)))
        below, above = (final_course(mu, kappa, distance, factor * rho)["slope"] for factor in (0.95, 1.05))
        if not below < 0 < above:
            missed.append(index)
    return missed


def test_simulated_blocks_turn_at_the_boundary():
    assert not _misses(list(draw_settings(3, 1)))


@pytest.mark.slow
def test_a_hundred_simulated_blocks_turn_within_five_per_cent_of_the_boundary():
    """Drawn after the boundary was fixed; ``-s`` prints how many turn elsewhere."""
    drawn = list(draw_settings(100, 0))
    bounds = [-np.sqrt(critical_ratio(mu, kappa=kappa)) for mu, kappa, _ in drawn]
    missed = _misses(drawn)
    print(
        f"boundary, {len(drawn)} blocks, rho_- from {min(bounds):.3f} to {max(bounds):.3f}: "
        f"{len(missed)} do not fall at 0.95 and rise at 1.05 of it"
    )
    assert not missed


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: critical_ratio([1.0]), "at least two"),
        (lambda: critical_ratio([2.0, -2.0]), "alike"),
        (lambda: critical_ratio([2.0, 0.0]), "mu is 0"),
        (lambda: slowest([2.0, 1.0], 0.0), "ratio = 0"),
        (lambda: final_slope([2.0, 1.0], 0.5, kappa=-1.0), "kappa = -1"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()

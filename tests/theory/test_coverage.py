"""Coverage of a shut gate: the way along mu, simulated nodes, and what K does."""

from __future__ import annotations

import numpy as np
import pytest

from joma.core.errors import InputError
from joma.dynamics.block_salience_flow import integrate_joint
from joma.theory.coverage import arrival_probability, arrival_time, coverage, least_length, neurons_needed
from joma.theory.drift import plant
from joma.theory.escape_time import escape_time, least_start
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian


@pytest.mark.parametrize(("start", "rho"), [(0.3, -1.0), (0.2, -1.0), (0.1, -0.5)])
def test_along_mu_it_is_the_escape_time(start, rho):
    found = float(arrival_time(start, 1.0, distance=1.1, rho_minus=rho))
    assert found == pytest.approx(escape_time(start, distance=1.1, rho_minus=rho), rel=5e-3)


def test_along_mu_the_least_length_is_the_least_start():
    wanted = least_start(400.0, distance=1.1, rho_minus=-0.5)
    assert float(least_length(1.0, distance=1.1, rho_minus=-0.5)) == pytest.approx(wanted, rel=2e-3)
    assert float(least_length(-1.0, distance=1.1, rho_minus=-0.5)) == np.inf


def test_askew_the_plane_flow_is_that_of_the_populations_drift():
    mu = np.array([0.6, 0.8, 0.0])
    planted = plant(Gaussian(), RELU, mu, distance=1.1, rho_minus=-0.5)
    across = np.array([0.8, -0.6, 0.0])
    v0 = 0.25 * (0.5 * mu + np.sqrt(0.75) * across)
    wanted = float(arrival_time(0.25, 0.5, distance=1.1, rho_minus=-0.5))
    moments = wanted / planted.stiffness.transverse * np.linspace(0.9, 1.1, 41)
    flow = integrate_joint(
        planted.mixture.drift(), v0, moments, attention="frozen", kappa=1.0, bias=planted.bias
    )
    share = flow.attended[:, 0] @ mu
    assert np.interp(0.5, share, moments) * planted.stiffness.transverse == pytest.approx(wanted, rel=5e-3)


def test_the_probability_is_that_of_random_lengths_and_directions():
    rng = np.random.default_rng(2)
    g = 0.1 * rng.standard_normal((400, 3))
    length = np.linalg.norm(g, axis=1)
    there = np.isfinite(arrival_time(length, g[:, 0] / length, distance=1.1, rho_minus=-0.5, patience=60.0))
    law = float(arrival_probability(0.1, dimensions=3, distance=1.1, rho_minus=-0.5, patience=60.0))
    assert abs(there.mean() - law) < 4 * np.sqrt(law * (1 - law) / 400)
    assert 0.1 < law < 0.6


def test_coverage_counts_draws_and_its_inverse_is_the_number_needed():
    q = np.array([0.3, 0.02])
    needed = neurons_needed(q, wanted=0.9)
    np.testing.assert_allclose(coverage(q, needed), 0.9, rtol=1e-12)
    draws = np.random.default_rng(0).random((20_000, 4, 3)) < 0.3
    found = draws.any(axis=1).all(axis=1).mean()
    assert coverage(0.3, 4, latents=3) == pytest.approx(found, abs=0.015)
    assert coverage(0.0, 5) == 0
    assert coverage(0.4, 0) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: arrival_time(0.0, 1.0, distance=1.0, rho_minus=-1.0), "length > 0"),
        (lambda: arrival_time(0.1, 1.5, distance=1.0, rho_minus=-1.0), "cosine"),
        (lambda: arrival_time(0.1, 1.0, distance=1.0, rho_minus=0.5), "rho_minus = 0.5"),
        (lambda: arrival_probability(0.0, dimensions=3, distance=1.0, rho_minus=-1.0), "scale"),
        (lambda: arrival_probability(0.1, dimensions=1, distance=1.0, rho_minus=-1.0), "dimensions"),
        (lambda: coverage(1.5, 3), "probability"),
        (lambda: neurons_needed(0.0), "between 0 and 1"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()

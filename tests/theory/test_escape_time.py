"""Escape from a shut gate: golden values, the flow itself, and the law's limit."""

from __future__ import annotations

import numpy as np
import pytest

from joma.core.errors import InputError
from joma.dynamics.block_salience_flow import integrate_joint
from joma.theory.drift import plant
from joma.theory.escape_time import escape_time, escape_time_asymptotic, least_start, speed
from joma.theory.isotropic import RELU, HomogeneousGate
from joma.theory.isotropic_laws import Gaussian, MultivariateT, UniformBall

LEAKY = HomogeneousGate(0.1, 1.0)


@pytest.mark.parametrize("case", ["1p1_m1_p3", "1p1_m1_p2", "1p1_m1_p15", "1p1_mp5_p1"])
def test_the_escape_time_is_the_golden_one(golden, case):
    wanted = golden(f"escape_{case}")
    given = wanted["inputs"]
    found = escape_time(given["start"], end=given["end"], distance=given["X"], rho_minus=given["rho_minus"])
    assert found == pytest.approx(wanted["expected"], rel=wanted["rtol"])


@pytest.mark.parametrize("attention", ["frozen", "exp"])
@pytest.mark.parametrize(
    ("law", "gate", "distance", "rho", "start"),
    [
        (Gaussian(), RELU, 1.1, -1.0, 0.25),
        (Gaussian(), RELU, 0.7, -0.5, 0.15),
        (Gaussian(), LEAKY, 1.1, -1.0, 0.02),
        (MultivariateT(5.0), RELU, 1.1, -0.5, 0.4),
        (UniformBall(3), RELU, 0.5, -0.45, 0.4),
    ],
)
def test_the_flow_takes_this_long(attention, law, gate, distance, rho, start):
    """Exp attention at a kappa whose logits stay below 0.01: within 5 %; uniform attention exactly."""
    mu = np.array([0.8, 0.5, np.sqrt(0.11)])
    planted = plant(law, gate, mu, distance=distance, rho_minus=rho)
    wanted = escape_time(start, distance=distance, rho_minus=rho, law=law, gate=gate)
    kappa = 0.1
    moments = wanted / planted.stiffness.transverse * np.linspace(0.9, 1.1, 41)
    v0 = start * mu
    flow = integrate_joint(
        planted.mixture.drift(), v0, moments, attention=attention, bias=planted.bias, kappa=kappa,
        z0=0.5 * kappa * v0 * v0 if attention == "exp" else 0.0,
    )  # fmt: skip
    share = np.linalg.norm(flow.attended[:, 0], axis=1)
    measured = np.interp(0.5, share, moments) * planted.stiffness.transverse
    assert measured == pytest.approx(wanted, rel=1e-4 if attention == "frozen" else 0.05)


@pytest.mark.slow
def test_the_flow_takes_this_long_in_random_settings():
    """Within 5 % of the flow of v and z, on settings drawn after the law was fixed; ``-s`` prints errors."""
    rng = np.random.default_rng([2026, 11, 30])
    errors, kappa = [], 0.1
    while len(errors) < 40:
        distance, rho = rng.uniform(0.6, 1.8), -rng.uniform(0.2, 1.2)
        start = -rho * rng.uniform(0.15, 0.6)
        wanted = escape_time(start, distance=distance, rho_minus=rho) if start < 0.5 else 0.0
        if not 0.5 < wanted < 300.0:
            continue
        mu = rng.uniform(0.3, 1.0, rng.integers(2, 7))
        mu /= np.linalg.norm(mu)
        planted = plant(Gaussian(), RELU, mu, distance=distance, rho_minus=rho)
        moments = wanted / planted.stiffness.transverse * np.linspace(0.8, 1.2, 81)
        v0 = start * mu
        flow = integrate_joint(
            planted.mixture.drift(), v0, moments, bias=planted.bias, kappa=kappa, z0=0.5 * kappa * v0 * v0
        )
        share = np.linalg.norm(flow.attended[:, 0], axis=1)
        errors.append(abs(np.interp(0.5, share, moments) * planted.stiffness.transverse / wanted - 1))
    print(
        f"escape time, {len(errors)} settings: error at most {max(errors):.3f}, median {np.median(errors):.4f}"
    )
    assert max(errors) < 0.05


def test_the_speed_is_that_of_the_populations_drift():
    mu = np.array([1.2, 0.9])
    planted = plant(Gaussian(), LEAKY, mu, distance=0.9, rho_minus=-0.6)
    share = np.array([0.1, 0.4, 1.0, 1.3])
    pull = planted.mixture.drift()(share[:, None] * mu, np.full(4, planted.bias))[0] @ mu / 1.5**2
    found = speed(share, distance=0.9, rho_minus=-0.6, gate=LEAKY) * planted.stiffness.transverse
    np.testing.assert_allclose(found, pull, atol=1e-12)


def test_the_asymptotic_law():
    ratios = [
        escape_time(s, distance=1.1, rho_minus=-1.0)
        / float(escape_time_asymptotic(s, distance=1.1, rho_minus=-1))
        for s in (0.1, 0.05, 0.03)
    ]
    assert ratios[0] == pytest.approx(1.0374, abs=1e-4)
    assert 1 < ratios[2] < ratios[1] < ratios[0]
    assert ratios[2] == pytest.approx(1.0, abs=0.005)


def test_at_zero_the_gate_of_relu_is_shut_and_a_leaky_one_is_not():
    assert escape_time(0.01, distance=1.1, rho_minus=-1.0) == np.inf
    assert escape_time(0.3, distance=0.5, rho_minus=-0.9, law=UniformBall(3)) == np.inf
    assert least_start(5.0, distance=1.1, rho_minus=-1.0, gate=LEAKY) == 0.0


def test_from_where_mu_is_reached_within_400_time_constants():
    shares = [least_start(400.0, distance=1.1, rho_minus=rho) for rho in (-1.5, -1, -0.7, -0.5, -0.3, -0.15)]
    assert np.round(shares, 2) == pytest.approx([0.26, 0.17, 0.12, 0.09, 0.05, 0.03], abs=0.0101)
    assert escape_time(shares[1], distance=1.1, rho_minus=-1.0) == pytest.approx(400.0, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: escape_time(0.0, distance=1.0, rho_minus=-1.0), "start = 0"),
        (lambda: escape_time(0.6, distance=1.0, rho_minus=-1.0), "start <= end < 1"),
        (lambda: speed(0.5, distance=1.0, rho_minus=0.5), "rho_minus = 0.5"),
        (lambda: escape_time_asymptotic(0.9, distance=2.0, rho_minus=-1.0), "s < "),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()

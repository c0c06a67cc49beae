from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from joma.core.errors import InputError
from joma.theory.isotropic import (
    RELU,
    HomogeneousGate,
    SmoothGate,
    gate_moments,
    gate_moments_printed,
    gated_expectation,
    mixture_flow,
    potential,
    theta_derivatives,
    theta_derivatives_printed,
)
from joma.theory.isotropic_laws import Gaussian, LaplaceMarginal, MultivariateT, UniformBall

LEAKY = HomogeneousGate(0.1, 1.0)
SIGMOID = SmoothGate(special.expit)
LAWS = [Gaussian(), UniformBall(2), LaplaceMarginal(), MultivariateT(3)]


def test_golden_vector(golden):
    entry = golden("lem1_vec_gauss_relu")
    inputs = entry["inputs"]
    share, mean = gated_expectation(Gaussian(), RELU, inputs["v"], inputs["xbar"], inputs["xi"])
    assert [share, *mean] == pytest.approx(entry["expected"], rel=entry["rtol"])


def test_golden_smooth_gate(golden):
    entry = golden("lem1_gauss_sigmoid")
    found = gate_moments(Gaussian(), SIGMOID, entry["inputs"]["r"], entry["inputs"]["norm_v"])
    assert found == pytest.approx(entry["expected"], rel=entry["rtol"])


def test_smooth_gate_by_product_quadrature():
    """Two-dimensional Gauss-Hermite, which knows nothing of the lemma."""
    x, w = np.polynomial.hermite_e.hermegauss(80)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    weight = np.outer(w, w).ravel() / w.sum() ** 2
    v, centre, bias = np.array([0.9, -0.4]), np.array([0.4, 0.7]), 0.15
    points = grid + centre
    psi = special.expit(points @ v + bias)
    share, mean = gated_expectation(Gaussian(), SIGMOID, v, centre, bias)
    assert share == pytest.approx(float(weight @ psi), rel=1e-10)
    assert mean == pytest.approx(weight @ (points * psi[:, None]), rel=1e-10)


def test_disc_by_polar_integration():
    """ReLU on the unit disc: the region is a half disc with a chord, integrated on a fine polar grid."""
    v, centre, bias = np.array([1.2, -1.6]), np.array([0.1, 0.05]), 0.3
    angles = (np.arange(4000) + 0.5) * 2 * np.pi / 4000
    radii = np.sqrt((np.arange(2000) + 0.5) / 2000)
    x = centre + (radii[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], -1)).reshape(-1, 2)
    open_ = (x @ v + bias) > 0
    share, mean = gated_expectation(UniformBall(2), RELU, v, centre, bias)
    assert share == pytest.approx(open_.mean(), abs=2e-4)
    assert mean == pytest.approx((x * open_[:, None]).mean(axis=0), abs=2e-4)


@given(
    norm=st.floats(0.05, 20.0),
    rho=st.floats(-5.0, 5.0),
    minus=st.floats(-1.0, 1.0),
    which=st.integers(0, len(LAWS) - 1),
)
def test_homogeneous_gates_see_the_distance_alone(norm, rho, minus, which):
    gate = HomogeneousGate(minus, 1.0)
    assert gate_moments(LAWS[which], gate, rho * norm, norm) == pytest.approx(
        gate_moments(LAWS[which], gate, rho, 1.0), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_homogeneous_is_the_limit_of_smooth(law):
    """The quadrature of the smooth gate, handed a step."""
    step = SmoothGate(lambda x: np.where(np.asarray(x) > 0, 1.0, 0.1))
    assert gate_moments(law, step, -0.4, 2.0) == pytest.approx(gate_moments(law, LEAKY, -0.4, 2.0), rel=1e-8)


def test_printed_is_right_at_unit_length_only():
    assert gate_moments_printed(Gaussian(), RELU, 0.3, 1.0) == gate_moments(Gaussian(), RELU, 0.3, 1.0)
    assert (
        gate_moments_printed(Gaussian(), RELU, 0.3, 2.0)[0]
        < 0.5 * gate_moments(Gaussian(), RELU, 0.3, 2.0)[0] + 0.1
    )


def test_subspace():
    """A law in a plane of three dimensions: the part of v outside acts on the bias alone."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((3, 2)))[0]
    v, centre = rng.standard_normal(3), rng.standard_normal(3)
    share, mean = gated_expectation(Gaussian(), RELU, v, centre, 0.2, basis=basis)
    inner, inner_mean = gated_expectation(Gaussian(), RELU, basis.T @ v, np.zeros(2), 0.2 + float(v @ centre))
    assert share == pytest.approx(inner, rel=1e-13)
    assert mean == pytest.approx(share * centre + basis @ inner_mean, rel=1e-12)


def test_flow_is_the_gradient_of_the_expected_activation():
    """Lemma 2 with Lemma 3: (v', xi') = grad of sum_j a_j |v| F(rho_j)."""
    centres, a = np.array([[0.8, 0.1], [-0.3, 0.4]]), np.array([1.0, -0.6])
    for law in LAWS:
        for gate in (RELU, LEAKY):
            state = np.array([0.7, -0.5, 0.2])

            def level(y, law=law, gate=gate):
                norm = np.linalg.norm(y[:2])
                rho = (centres @ y[:2] + y[2]) / norm
                return norm * float(a @ potential(law, gate, rho))

            h = 1e-6
            slope = [(level(state + h * e) - level(state - h * e)) / (2 * h) for e in np.eye(3)]
            drift, drive = mixture_flow(law, gate, state[:2], state[2], centres, a)
            assert [*drift, drive] == pytest.approx(slope, rel=1e-7, abs=1e-9)


def test_linear_activation_moves_by_the_means():
    always = HomogeneousGate(1.0, 1.0)
    drift, drive = mixture_flow(Gaussian(), always, [2.0, 0.0], 0.3, [[0.5, 1.0], [1.0, 0.0]], [1.0, -0.4])
    assert drift == pytest.approx([0.1, 1.0])
    assert drive == pytest.approx(0.6)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_lemma_5(law):
    h, rho = 1e-6, 0.3
    ahead, behind = (np.array(gate_moments(law, LEAKY, rho + d, 1.0)) for d in (h, -h))
    slopes = (ahead - behind) / (2 * h)
    assert theta_derivatives(law, LEAKY, rho) == pytest.approx(tuple(slopes), rel=1e-7)
    printed = np.array(theta_derivatives_printed(law, LEAKY, rho))
    assert printed / slopes == pytest.approx([1.1 / 0.9] * 2, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: gated_expectation(Gaussian(), RELU, [0.0, 0.0], [1.0, 0.0], 0.0), "no direction"),
        (lambda: gated_expectation(Gaussian(), RELU, [1.0], [1.0, 0.0], 0.0), "alike"),
        (
            lambda: gated_expectation(Gaussian(), RELU, [0.0, 1.0], [0.0, 0.0], 0.0, basis=[[1.0], [0.0]]),
            "reach",
        ),
        (
            lambda: gated_expectation(Gaussian(), RELU, [0.0, 1.0], [0.0, 0.0], 0.0, basis=[[2.0], [0.0]]),
            "orthonormal",
        ),
        (lambda: gate_moments(Gaussian(), RELU, 0.1, 0.0), "direction"),
        (lambda: mixture_flow(Gaussian(), RELU, [1.0], 0.0, [[1.0]], [1.0, 2.0]), r"\(C, d\)"),
    ],
)
def test_bad_input(call, word):
    with pytest.raises(InputError, match=word):
        call()

"""The joint flow of weights and attention, against closed forms and invariants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from joma.core.errors import DivergenceError, InputError
from joma.dynamics.block_salience_flow import integrate_attended, integrate_joint, integrate_salience
from joma.theory import block_salience, salience
from joma.theory.drift import of_samples, plant, towards
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

MU = np.array([2.373, 1.56, 0.809])
TIMES = np.linspace(0.0, 2.0, 6)
REST = np.zeros(3)


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0, 1e3, 1e6])
def test_integration_agrees_with_quadrature(size):
    times = np.array([0.3, 1.0, 1.5, 4.0]) / max(size, 1.0)
    found = integrate_salience([size, 0.5 * size], times)
    exact = block_salience.solve([size, 0.5 * size], times)
    np.testing.assert_allclose(found.log_inverse_delta, exact.log_inverse_delta, rtol=1e-8)


def test_the_joint_flow_is_the_closed_form_with_the_invariant():
    flow = integrate_joint(towards(MU), REST, TIMES, kappa=0.8)
    exact = block_salience.solve(MU, TIMES, kappa=0.8)
    np.testing.assert_allclose(flow.v[:, 0], exact.v, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(flow.logits, 0.4 * flow.v[:, 0] ** 2, atol=1e-8)


def test_the_block_without_its_attention_is_the_block():
    planted = plant(Gaussian(), RELU, MU, distance=1.1, rho_minus=-0.7)
    start, kappa = 0.6 * MU, 0.8
    v0 = start * np.exp(-0.5 * block_salience.lambert(kappa * start**2))
    drift = planted.mixture.drift(trained_bias=True)
    joint = integrate_joint(drift, v0, TIMES, kappa=kappa, z0=0.5 * kappa * v0**2, bias=planted.bias)
    alone = integrate_attended(drift, start, TIMES, kappa=kappa, bias=planted.bias)
    np.testing.assert_allclose(alone.attended, joint.attended[:, 0], rtol=1e-5)
    np.testing.assert_allclose(alone.logits, joint.logits, atol=1e-5)
    np.testing.assert_allclose(alone.bias, joint.bias[:, 0], rtol=1e-5)
    assert abs(alone.bias[-1] - planted.bias) > 1e-2


def test_the_printed_flow_is_equation_6():
    flow = integrate_joint(towards(MU), REST, TIMES, attention="printed")
    np.testing.assert_allclose(flow.v[:, 0], salience.solve(MU, TIMES).v, rtol=1e-6, atol=1e-9)


def test_linear_attention_is_its_closed_form():
    flow = integrate_joint(towards(MU), REST, TIMES, attention="linear", z0=0.4)
    u, v = block_salience.solve_linear_attention_block(MU, TIMES, c=0.16)
    np.testing.assert_allclose(flow.v[:, 0], v, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(flow.attended[:, 0], u, rtol=1e-7, atol=1e-8)


def test_softmax_attention_rests_where_the_gate_reads_mu_and_keeps_the_sum_of_its_logits():
    flow = integrate_joint(towards(MU), REST, [0.0, 200.0], attention="softmax")
    np.testing.assert_allclose(flow.attended[-1, 0], MU, rtol=1e-6)
    np.testing.assert_allclose(flow.logits.sum(axis=-1), 0.0, atol=1e-9)


def test_nodes_that_share_attention_are_one_node_of_their_norm():
    mu = np.array([[1.0, 2.0], [-0.7, 0.5]])
    flow = integrate_joint(towards(mu), np.zeros((2, 2)), TIMES)
    one = block_salience.solve(np.linalg.norm(mu, axis=0), TIMES)
    np.testing.assert_allclose(np.linalg.norm(flow.v, axis=1), one.v, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(flow.logits, one.logits, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("attention", ["exp", "frozen", "softmax"])
def test_full_c_changes_the_course_and_not_the_rest(attention):
    planted = plant(Gaussian(), RELU, MU, distance=1.1, rho_minus=-0.5)
    flow = integrate_joint(
        towards(MU, planted.stiffness.matrix(MU)), 0.3 * MU, [0.0, 600.0], attention=attention
    )
    np.testing.assert_allclose(flow.attended[-1, 0], MU, rtol=1e-5)


def test_a_trained_bias_leaves_gaussian_data_without_a_rest():
    planted = plant(Gaussian(), RELU, MU, distance=1.1, rho_minus=-0.5)
    drift = planted.mixture.drift(trained_bias=True)
    flow = integrate_joint(drift, 0.9 * MU, [0.0, 50.0, 100.0, 200.0], bias=planted.bias, attention="frozen")
    length = np.linalg.norm(flow.v[:, 0], axis=-1)
    assert length[3] - length[2] == pytest.approx(2 * (length[2] - length[1]), rel=0.1)


def test_the_block_rests_where_uniform_attention_does():
    # The notes' numbers: n = 3, xi = -.5 |mu|, rest at (2.373, 1.560, .809), v* = (1.181, .972, .654).
    planted = plant(Gaussian(), RELU, MU, distance=1.1, rho_minus=-0.5)
    start = 0.3 * MU
    flow = integrate_joint(planted.mixture.drift(), start, [0.0, 500.0], bias=planted.bias, z0=0.5 * start**2)
    np.testing.assert_allclose(flow.attended[-1, 0], MU, atol=1e-4)
    np.testing.assert_allclose(flow.v[-1, 0], [1.181, 0.972, 0.654], atol=6e-4)
    np.testing.assert_allclose(flow.logits[-1], 0.5 * flow.v[-1, 0] ** 2, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": "cosine"}, "unknown"),
        ({"kappa": -1.0}, "kappa = -1"),
        ({"times": [1.0, 0.5]}, "increasing"),
        ({"times": [-1.0, 0.5]}, "negative"),
        ({"v0": np.zeros(2)}, "drift does not take v0"),
        ({"attention": "linear"}, "nothing moves"),
        ({"z0": [1.0, 2.0]}, "shape"),
    ],
)
def test_bad_input(change, words):
    arguments = {"v0": REST, "times": TIMES, **change}
    with pytest.raises(InputError, match=words):
        integrate_joint(of_samples(np.ones((4, 3)), np.ones(4), RELU), **arguments)


def test_times_beyond_float64_are_refused():
    with pytest.raises(DivergenceError, match="earlier times"):
        integrate_salience([1e6], [0.0, 1e300])


def test_salience_has_no_negative_times_no_zero_and_no_negative_kappa():
    with pytest.raises(InputError, match="kappa = -1"):
        integrate_salience([1.0], [1.0], kappa=-1.0)
    with pytest.raises(InputError, match="negative"):
        integrate_salience([1.0], [-1.0])
    with pytest.raises(InputError, match="mu is 0"):
        integrate_salience([0.0], [1.0])


def test_linear_attention_with_kappa_is_the_closed_form_of_scaled_weights():
    """With w = sqrt(kappa) v: w' = sqrt(kappa) mu z - z^2 w and z z' = w w', the flow of kappa = 1."""
    flow = integrate_joint(towards(MU), REST, TIMES, attention="linear", z0=0.4, kappa=2.5)
    u, v = block_salience.solve_linear_attention_block(np.sqrt(2.5) * MU, TIMES, c=0.16)
    np.testing.assert_allclose(flow.v[:, 0], v / np.sqrt(2.5), rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(flow.attended[:, 0], u / np.sqrt(2.5), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kappa", [1.0, 2.5])
@pytest.mark.parametrize("attention", ["exp", "softmax"])
def test_the_joint_flow_descends_half_the_squared_distance(attention, kappa):
    """v' = -dE/dv and z' = -kappa dE/dz of E = |mu - v o a(z)|^2 / 2, by autograd and another solver."""

    def velocity(_, state):
        v, z = (torch.tensor(part, requires_grad=True) for part in np.split(state, 2))
        gain = z.exp() if attention == "exp" else 3 * torch.softmax(z, 0)
        (((torch.tensor(MU) - v * gain) ** 2).sum() / 2).backward()
        return -np.concatenate([v.grad.numpy(), kappa * z.grad.numpy()])

    start, logits = np.array([0.3, -0.2, 0.1]), np.array([0.2, 0.0, -0.5])
    own = solve_ivp(velocity, (0, 1), np.concatenate([start, logits]), rtol=1e-9, atol=1e-11)
    flow = integrate_joint(towards(MU), start, [0.0, 1.0], attention=attention, kappa=kappa, z0=logits)
    np.testing.assert_allclose(flow.v[-1, 0], own.y[:3, -1], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(flow.logits[-1], own.y[3:, -1], rtol=1e-6, atol=1e-8)

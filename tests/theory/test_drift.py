"""Drifts: closed forms against samples and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from joma.core.errors import InputError
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings
from joma.theory.drift import Mixture, of_labels, of_samples, plant, towards
from joma.theory.isotropic import RELU, HomogeneousGate, mixture_flow
from joma.theory.isotropic_laws import Gaussian, LaplaceMarginal, MultivariateT, UniformBall

LEAKY = HomogeneousGate(0.1, 1.0)
MU = np.array([0.9, 0.4, 0.2])


@pytest.mark.parametrize("gate", [RELU, LEAKY])
@pytest.mark.parametrize("law", [Gaussian(), UniformBall(3), MultivariateT(5.0)])
def test_a_mixtures_drift_is_lemma_2_and_that_of_its_samples(law, gate):
    mixture = Mixture(law, gate, np.array([[0.0, 0.1, 0.0], [0.6, 0.2, -0.1]]), np.array([-1.5, 1.0]))
    u, xi = np.array([[0.7, 0.2, -0.3], [0.1, -0.4, 0.5]]), np.array([-0.1, 0.05])
    pull, push = mixture.drift(trained_bias=True)(u, xi)
    for k in range(2):
        wanted, bias = mixture_flow(law, gate, u[k], xi[k], mixture.centres, mixture.amplitudes)
        np.testing.assert_allclose(pull[k], wanted, rtol=1e-12)
        assert push[k] == pytest.approx(bias, rel=1e-12)
    x, g = mixture.sample(200_000, 1)
    sampled, told = of_samples(x, g, gate, trained_bias=True)(u, xi)
    np.testing.assert_allclose(sampled, pull, atol=0.03)
    np.testing.assert_allclose(told, push, atol=0.03)


@pytest.mark.parametrize("law", [Gaussian(), UniformBall(3), MultivariateT(5.0)])
def test_what_is_planted_is_a_zero_of_the_drift_with_theorem_3s_jacobian(law):
    unit = 0.4 if isinstance(law, UniformBall) else 1.0
    planted = plant(law, LEAKY, MU, distance=unit, rho_minus=-0.8 * unit)
    drift, xi = planted.mixture.drift(), np.array([planted.bias])
    np.testing.assert_allclose(drift(MU[None], xi)[0], 0.0, atol=1e-12)
    step = 1e-6
    jacobian = np.stack(
        [
            (drift((MU + step * e)[None], xi)[0] - drift((MU - step * e)[None], xi)[0])[0] / (2 * step)
            for e in np.eye(3)
        ],
        axis=1,
    )
    np.testing.assert_allclose(-jacobian, planted.stiffness.matrix(MU), atol=1e-8)


def test_gaussian_data_at_minus_one_have_a_c_that_is_a_multiple_of_the_identity():
    c = plant(Gaussian(), RELU, MU, distance=1.3, rho_minus=-1.0).stiffness
    assert c.along == pytest.approx(c.transverse, rel=1e-12)


def test_theorem_3s_model():
    c = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    pull, push = towards(MU, c)(np.zeros((1, 3)), np.zeros(1))
    np.testing.assert_allclose(pull[0], c @ MU)
    assert push == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: towards([1.0, 0.0]), "component that is 0"),
        (lambda: towards([1.0, 2.0], np.eye(3)), "do not match"),
        (lambda: plant(Gaussian(), RELU, [0.0, 0.0], distance=1.0, rho_minus=-1.0), "other than 0"),
        (lambda: plant(MultivariateT(1.2), RELU, MU, distance=3.0, rho_minus=-3.0), "repels"),
        (lambda: of_samples(np.ones((3, 2)), np.ones(4), RELU), "do not match"),
        (
            lambda: LaplaceMarginal().sample(np.random.default_rng(0), 5, 2),
            "cannot be drawn",
        ),
        (lambda: UniformBall(3).sample(np.random.default_rng(0), 5, 2), "dimension 2"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_the_drift_of_labels_is_eq_2_of_the_block():
    rng = np.random.default_rng(0)
    x, y, p = rng.integers(0, 2, (9, 3)).astype(float), rng.integers(0, 2, 9).astype(float), np.full(9, 1 / 9)
    u, xi = rng.normal(size=(2, 3)), np.array([0.1, -0.2])
    pull, push = of_labels(x, y, p)(u, xi)
    block = Block(Embeddings.orthonormal(3), Attention(kind="exp"), activation("relu"))
    for k in range(2):
        step = block.directions(
            x,
            np.append(u[k], xi[k])[None],
            np.zeros(3),
            lambda _, activity: y[:, None] - expit(activity.hidden),
            sample_weights=p,
        )
        np.testing.assert_allclose(np.append(pull[k], push[k]), step.weights[0], atol=1e-15)
    rounded = of_labels(x, y, p, width=1e-3)(u, xi)
    np.testing.assert_allclose(rounded[0], pull, atol=1e-3)
    assert not of_labels(x, y, p, trained_bias=False)(u, xi)[1].any()

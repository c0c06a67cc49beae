from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import DivergenceError, InputError
from joma.theory.attention import ATTENTION_KINDS, Attention


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.2, 5))
def test_jacobian_agrees_with_central_differences_and_pull_back(kind, seed, temperature):
    rng = np.random.default_rng(seed)
    attention = Attention(kind=kind, temperature=temperature, normaliser=1.0 if kind == "softmax" else 1.7)
    x, z, c = rng.dirichlet(np.ones(4), 3), rng.normal(size=4), rng.normal(size=(3, 4))
    jacobian, h = attention.jacobian(x, z), 1e-6
    for column in range(4):
        step = h * np.eye(4)[column]
        difference = (attention.scores(x, z + step) - attention.scores(x, z - step)) / (2 * h)
        scale = 1 + np.abs(jacobian).max()
        np.testing.assert_allclose(jacobian[..., column], difference, atol=1e-7 * scale / temperature**2)
    pulled = attention.pull_back(attention.scores(x, z), x, c)
    np.testing.assert_allclose(pulled, np.einsum("nbz,nb->nz", jacobian, c), atol=1e-12 * scale)


def test_softmax_is_a_distribution_over_the_tokens_that_are_there_however_large_the_logits():
    x = np.array([[0.5, 0.5, 0.0], [0.0, 1e-5, 1.0]])
    b = Attention().scores(x, np.array([-2000.0, -2000.0, 3000.0]))
    np.testing.assert_allclose(b, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])


def test_softmax_is_unchanged_by_a_shift_and_equals_exp_up_to_the_normaliser():
    rng = np.random.default_rng(1)
    x, z = rng.dirichlet(np.ones(5), 4), rng.normal(size=5)
    soft = Attention(temperature=0.7).scores(x, z)
    np.testing.assert_allclose(soft, Attention(temperature=0.7).scores(x, z + 40), rtol=1e-12)
    exp = Attention(kind="exp", temperature=0.7, normaliser=3.0).scores(x, z)
    np.testing.assert_allclose(soft, exp / exp.sum(axis=-1, keepdims=True), rtol=1e-13)


def test_scores_broadcast_over_leading_axes():
    rng = np.random.default_rng(2)
    x, z = rng.dirichlet(np.ones(5), (6, 4)), rng.normal(size=(3, 6, 5))
    b = Attention().scores(x, z)
    assert b.shape == (3, 6, 4, 5)
    np.testing.assert_array_equal(b[1, 2], Attention().scores(x[2], z[1, 2]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "sofmax"}, "did you mean 'softmax'"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"kind": "exp", "normaliser": -1.0}, "normaliser"),
        ({"normaliser": 2.0}, "computes its own"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        Attention(**settings)


def test_data_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="do not match"):
        Attention().scores(np.ones((2, 3)), np.ones(4))
    with pytest.raises(InputError, match="no token of positive frequency"):
        Attention().scores(np.array([[0.0, 0.0], [0.5, 0.5]]), np.zeros(2))
    with pytest.raises(DivergenceError, match="overflows"):
        Attention(kind="exp").scores(np.ones((1, 2)), np.array([0.0, 1000.0]))

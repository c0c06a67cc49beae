from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.theory.activation import ACTIVATIONS, activation, leaky, smooth_relu
from joma.theory.attention import ATTENTION_KINDS, Attention
from joma.theory.block import (
    Block,
    CrossEntropyGradient,
    Embeddings,
    superpose_patterns,
    weights_from_parts,
)

TORCH = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
    # torch takes x for softplus(x) from x = 20 on, unless told otherwise
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=700),
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "quadratic": lambda x: x * x / 2,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_derivatives_agree_with_torch(name):
    x = torch.linspace(-6, 6, 200, dtype=torch.float64, requires_grad=True)
    y = TORCH[name](x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    value, derivative = activation(name)(x.detach().numpy())
    np.testing.assert_allclose(value, y.detach(), atol=1e-14)
    np.testing.assert_allclose(derivative, slope, atol=1e-13)
    homogeneous = np.allclose(value, derivative * x.detach().numpy())
    assert homogeneous == activation(name).homogeneous


def test_smooth_relu_is_relu_but_for_its_width():
    x = np.linspace(-3, 3, 601)
    value, derivative = smooth_relu(0.01)(x)
    assert np.abs(value - np.maximum(x, 0)).max() == pytest.approx(0.01 * np.log(2), rel=1e-6)
    np.testing.assert_allclose(derivative[np.abs(x) > 0.4], (x > 0)[np.abs(x) > 0.4], atol=1e-15)


def example(kind, name, seed, *, orthonormal=True, residual=True):
    rng = np.random.default_rng(seed)
    n, m, k = 6, 4, 3
    if orthonormal:
        embeddings = Embeddings.orthonormal(m, residual=residual)
    else:
        embeddings = Embeddings(rng.normal(size=(7, m)), rng.normal(size=7))
    block = Block(embeddings, Attention(kind=kind, temperature=0.6), activation(name))
    p = rng.dirichlet(np.ones(n))
    arrays = {
        "x": rng.dirichlet(np.ones(m), n),
        "w": rng.normal(size=(k, embeddings.dimension)),
        "z": rng.normal(size=m),
        "g": rng.normal(size=(n, k)),
        "p": p,
    }
    return block, arrays


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@pytest.mark.parametrize("orthonormal", [True, False])
@given(seed=st.integers(0, 10**6), name=st.sampled_from(ACTIVATIONS))
def test_loss_and_directions_agree_with_autograd(kind, orthonormal, seed, name):
    block, a = example(kind, name, seed, orthonormal=orthonormal)
    t = {key: torch.tensor(value, requires_grad=key in "wz") for key, value in a.items()}
    u, q = torch.tensor(block.embeddings.context), torch.tensor(block.embeddings.query)
    scaled = t["z"] / 0.6
    b = t["x"] * (scaled if kind == "linear" else scaled.exp())
    if kind == "softmax":
        b = b / b.sum(dim=1, keepdim=True)
    h = TORCH[name]((b @ u.T + q) @ t["w"].T)
    loss = (t["p"][:, None] * t["g"] * h).sum()
    loss.backward()
    ours = block.per_node_loss(a["x"], a["w"], a["z"], a["g"], sample_weights=a["p"])
    np.testing.assert_allclose(ours, loss.item(), rtol=1e-11, atol=1e-13)
    d = block.directions(a["x"], a["w"], a["z"], a["g"], sample_weights=a["p"])
    np.testing.assert_allclose(d.weights, t["w"].grad, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(d.logits, t["z"].grad, rtol=1e-9, atol=1e-11)


def test_bias_and_correction_are_what_they_say():
    block, a = example("softmax", "tanh", 3)
    activity = block.forward(a["x"], a["w"], a["z"])
    v = block.embeddings.read(a["w"])
    d = block.directions(a["x"], a["w"], a["z"], a["g"], sample_weights=a["p"])
    bias = np.einsum("n,nk,nk->k", a["p"], a["g"], activity.slope)
    correction = np.einsum(
        "n,nk,nk,nm,nl,kl->m", a["p"], a["g"], activity.slope, activity.scores, activity.scores, v
    )
    np.testing.assert_allclose(d.bias, bias, rtol=1e-12)
    np.testing.assert_allclose(d.correction, correction, rtol=1e-11)
    # With the residual, the weight along the query embedding moves as the implicit bias does (Eq. 60).
    np.testing.assert_allclose(d.weights[:, -1], bias, rtol=1e-12)


def test_the_standard_embeddings_are_a_shortcut_and_nothing_else():
    block, a = example("softmax", "silu", 4)
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    turned = Embeddings(rotation @ block.embeddings.context, rotation @ block.embeddings.query)
    assert block.embeddings.is_standard
    assert not turned.is_standard
    one = block.directions(a["x"], a["w"], a["z"], a["g"], sample_weights=a["p"])
    two = Block(turned, block.attention, block.activation).directions(
        a["x"], a["w"] @ rotation.T, a["z"], a["g"], sample_weights=a["p"]
    )
    np.testing.assert_allclose(two.weights @ rotation, one.weights, atol=1e-13)
    np.testing.assert_allclose(two.logits, one.logits, atol=1e-13)
    np.testing.assert_allclose(two.correction, one.correction, atol=1e-13)


def test_leading_axes_are_a_batch():
    block, a = example("softmax", "gelu", 5)
    rng = np.random.default_rng(1)
    w, z = rng.normal(size=(2, 3, *a["w"].shape)), rng.normal(size=(3, 4))
    batch = block.directions(a["x"], w, z, a["g"], sample_weights=a["p"])
    one = block.directions(a["x"], w[1, 2], z[2], a["g"], sample_weights=a["p"])
    for whole, part in zip(batch, one, strict=True):
        np.testing.assert_allclose(whole[1, 2], part, rtol=1e-12, atol=1e-15)


def test_cross_entropy_gradient_is_that_of_torch():
    block, a = example("softmax", "linear", 6)
    h = block.forward(a["x"], a["w"], a["z"])
    hidden = torch.tensor(h.hidden, requires_grad=True)
    labels = (0, 2, 1, 1, 0, 2)
    torch.nn.functional.cross_entropy(hidden, torch.tensor(labels), reduction="sum").backward()
    np.testing.assert_allclose(CrossEntropyGradient(labels)(0.0, h), -hidden.grad, atol=1e-14)
    with pytest.raises(InputError, match="do not fit"):
        CrossEntropyGradient((0, 3, 1, 1, 0, 2))(0.0, h)


def test_weights_from_parts_and_superposition():
    rng = np.random.default_rng(7)
    q, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    context, queries = q[:, :5], q[:, 5:7]
    templates = np.array([[1.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0, 1.0]])
    biases = np.array([-0.4, -0.9])
    w = superpose_patterns(templates, biases, context, queries)
    parts = weights_from_parts(
        np.zeros((1, 8)), templates[:1], biases[:1], Embeddings(context, queries[:, 0])
    )
    np.testing.assert_allclose(w @ q[:, :5], templates.sum(axis=0), atol=1e-14)
    np.testing.assert_allclose(parts[0] @ queries[:, 0], biases[0], atol=1e-14)
    for m in range(2):
        b = rng.dirichlet(np.ones(5)) * (templates[m] > 0)  # tokens of pattern m alone
        np.testing.assert_allclose(
            w @ (context @ b + queries[:, m]), templates[m] @ b + biases[m], atol=1e-14
        )
    with pytest.raises(InputError, match="do not match"):
        superpose_patterns(templates, biases[:1], context, queries)


def test_embeddings_and_activations_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="do not match"):
        Embeddings(np.eye(3), np.zeros(4))
    with pytest.raises(InputError, match="not finite"):
        Embeddings(np.full((3, 2), np.nan), np.zeros(3))
    with pytest.raises(InputError, match="query_token = 4"):
        Embeddings.orthonormal(4, query_token=4)
    with pytest.raises(InputError, match="at least 1"):
        Embeddings.orthonormal(0)
    with pytest.raises(InputError, match="did you mean 'relu'"):
        activation("rleu")
    with pytest.raises(InputError, match="finite"):
        leaky(float("inf"))
    with pytest.raises(InputError, match="width = 0"):
        smooth_relu(0.0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_value_matrix_merges_into_the_embeddings_and_theorem_1_needs_it_orthogonal(orthogonal):
    rng = np.random.default_rng(3)
    values = rng.normal(size=(5, 5)) / 2
    if orthogonal:
        values = np.linalg.qr(values)[0]
    plain = Embeddings.orthonormal(4, residual=False)
    block = Block(plain.merge_values(values), Attention(kind="exp"), activation("gelu"))
    x, p = rng.dirichlet(np.ones(4), 6), np.full(6, 1 / 6)
    w, z, g = rng.normal(size=(3, 5)), rng.normal(size=4), rng.normal(size=(6, 3))
    hidden = activation("gelu")((x * np.exp(z)) @ plain.context.T @ values.T @ w.T)[0]
    np.testing.assert_allclose(block.forward(x, w, z).hidden, hidden, rtol=1e-12)
    # Theorem 1, exp attention: dz = sum_k v_k o dv_k with v = U'w.
    step = block.directions(x, w, z, g, sample_weights=p)
    error = step.logits - (block.embeddings.read(w) * block.embeddings.read(step.weights)).sum(axis=0)
    assert (np.abs(error).max() < 1e-12) == orthogonal


def test_a_value_matrix_of_another_size_is_refused():
    with pytest.raises(InputError, match="must be"):
        Embeddings.orthonormal(4).merge_values(np.eye(4))

"""Stacks of any depth: gradients against autograd, invariants, the network without its attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.checks.stack import RATES, course, drift, theorem1_stack
from joma.core.errors import InputError
from joma.dynamics.stack_flow import solve
from joma.theory.activation import activation
from joma.theory.stack import Layer, directions, invariant, random_stack, reduced_logits

X = np.random.default_rng(0).random((7, 5))
LABELS = np.array([0, 1, 2, 0, 1, 2, 2])
SOFTPLUS = activation("softplus")


def test_directions_are_those_of_autograd():
    layers = random_stack((5, 4, 2, 3), (2, 3, 1), 1)
    loss, steps = directions(layers, X, LABELS, SOFTPLUS)
    tensors = [
        [torch.tensor(part, requires_grad=True) for part in (one.weights, one.bias, one.logits)]
        for one in layers
    ]
    x = torch.tensor(X)
    for number, (v, xi, z) in enumerate(tensors):
        h = torch.einsum("ngm,gkm->ngk", x[:, None] * z.exp(), v) + xi
        x = (h if number == 2 else torch.nn.functional.softplus(h)).flatten(1)
    wanted = torch.nn.functional.cross_entropy(x, torch.tensor(LABELS))
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    (-wanted).backward()
    for step, parts in zip(steps, tensors, strict=True):
        for found, part in zip((step.weights, step.bias, step.logits), parts, strict=True):
            np.testing.assert_allclose(found, part.grad.numpy(), rtol=1e-9, atol=1e-12)


@settings(max_examples=4, deadline=None)
@given(depth=st.integers(1, 4), seed=st.integers(0, 1000))
def test_every_layer_keeps_its_invariant(depth, seed):
    assert drift(course(depth, seed), **RATES) < 1e-9


def test_claims():
    assert {claim.verdict for claim in theorem1_stack()} == {"holds"}


def test_layers_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="layer 2 reads 5 inputs and is given 8"):
        directions([random_stack((5, 4), (2,), 0)[0], random_stack((5, 3), (1,), 0)[0]], X, LABELS, SOFTPLUS)
    with pytest.raises(InputError, match="of one group"):
        directions(random_stack((5, 3), (2,), 0), X, LABELS, SOFTPLUS)
    with pytest.raises(InputError, match="classes below 2"):
        directions(random_stack((5, 2), (1,), 0), X, LABELS, SOFTPLUS)
    with pytest.raises(InputError, match="do not match"):
        random_stack((5, 4, 3), (1,), 0)
    with pytest.raises(InputError, match="there is no layer"):
        directions([], X, LABELS, SOFTPLUS)
    with pytest.raises(InputError, match="whole numbers"):
        directions(random_stack((5, 3), (1,), 0), X, LABELS + 0.5, SOFTPLUS)
    with pytest.raises(InputError, match=r"weights \(1, 3, 5\), bias \(1, 2\)"):
        Layer(np.ones((1, 3, 5)), np.zeros((1, 2)), np.zeros((1, 5)))
    with pytest.raises(InputError, match="layer 1 reads 4"):
        directions([Layer(np.ones((1, 3, 4)), np.zeros((1, 3)), np.zeros((1, 4)))], X, LABELS, SOFTPLUS)


def test_rates_and_weights_that_make_no_sense_are_refused():
    (layer,) = random_stack((5, 3), (1,), 0)
    with pytest.raises(InputError, match=r"weight_rate = 0\.0"):
        invariant(layer, weight_rate=0.0)
    with pytest.raises(InputError, match=r"attention_rate = -1\.0"):
        reduced_logits(layer.weights, layer, attention_rate=-1.0)
    with pytest.raises(InputError, match=r"weights \(1, 2, 5\) must be \(1, 3, 5\)"):
        reduced_logits(layer.weights[:, :2], layer)
    with pytest.raises(InputError, match=r"attention_rate = -1\.0"):
        solve([layer], X, LABELS, SOFTPLUS, [0.0, 1.0], attention_rate=-1.0)
    with pytest.raises(InputError, match=r"attention_rate = 0\.0"):
        solve([layer], X, LABELS, SOFTPLUS, [0.0, 1.0], attention_rate=0.0, reduced=True)
    with pytest.raises(InputError, match="increasing"):
        solve([layer], X, LABELS, SOFTPLUS, [1.0, 0.0])


@pytest.mark.parametrize("way", ["full", "reduced", "through"])
def test_every_flow_begins_with_the_gradient_of_autograd(way):
    """Weights and biases at eta_w, logits at eta_z or as Theorem 1's function of the weights."""
    rates = {"weight_rate": 2.0, "attention_rate": 0.5}
    layers = random_stack((5, 4, 2, 3), (2, 3, 1), 1)
    weights, biases, logits = (
        [torch.tensor(getattr(one, name), requires_grad=True) for one in layers]
        for name in ("weights", "bias", "logits")
    )
    x = torch.tensor(X)
    for number, (v, xi, z0) in enumerate(zip(weights, biases, logits, strict=True)):
        kappa = 0.25 if way == "through" else 0.0
        z = z0 + kappa / 2 * ((v**2).sum(1) - (v.detach() ** 2).sum(1))
        h = torch.einsum("ngm,gkm->ngk", x[:, None] * z.exp(), v) + xi
        x = (h if number == 2 else torch.nn.functional.softplus(h)).flatten(1)
    (-torch.nn.functional.cross_entropy(x, torch.tensor(LABELS))).backward()
    options = {"reduced": way != "full", "through": way == "through", **rates}
    brief = 1e-5
    found = solve(layers, X, LABELS, SOFTPLUS, [0.0, brief], **options).layers[1]
    for one, begin, v, xi, z in zip(found, layers, weights, biases, logits, strict=True):
        close = {"rtol": 1e-3, "atol": 1e-5}
        np.testing.assert_allclose((one.weights - begin.weights) / brief, 2.0 * v.grad.numpy(), **close)
        np.testing.assert_allclose((one.bias - begin.bias) / brief, 2.0 * xi.grad.numpy(), **close)
        if way == "full":
            np.testing.assert_allclose((one.logits - begin.logits) / brief, 0.5 * z.grad.numpy(), **close)

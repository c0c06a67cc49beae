"""The stack with queries: against the theory's gradients, its invariants, and what is at hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from joma.core.errors import InputError
from joma.models.stack import JomaStack
from joma.theory.activation import activation
from joma.theory.stack import Layer, directions


def made(layers: int = 2) -> JomaStack:
    torch.manual_seed(0)
    stack = JomaStack(4, layers=layers, units=2, scale=0.5)
    with torch.no_grad():
        for z in stack.logits:
            z += 0.3 * torch.randn_like(z)
    return stack


X = torch.rand(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
HERE = torch.ones_like(X)


def test_gradients_are_the_theorys_where_all_queries_are_at_hand():
    stack, labels = made(), torch.arange(9) % 3
    readout = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    scores = stack(X, HERE)[-1].flatten(1) @ readout.T
    (-torch.nn.functional.cross_entropy(scores, labels)).backward()
    layers = [
        Layer(v.detach().numpy(), xi.detach().numpy(), z.detach().numpy())
        for v, xi, z in zip(stack.weights, stack.biases, stack.logits, strict=True)
    ]
    top = Layer(readout.detach().numpy()[None], np.zeros((1, 3)), np.zeros((1, 8)))
    _, steps = directions([*layers, top], X.numpy(), labels.numpy(), activation("relu"))
    for step, v, z in zip(steps[:-1], stack.weights, stack.logits, strict=True):
        assert v.grad is not None
        assert z.grad is not None
        np.testing.assert_allclose(v.grad.numpy(), step.weights, atol=1e-14)
        np.testing.assert_allclose(z.grad.numpy(), step.logits, atol=1e-14)


def test_the_gradient_keeps_theorem_1_at_every_layer_whoever_is_at_hand():
    stack = made(3)
    present = (torch.rand(9, 4, dtype=torch.float64) > 0.4).double()
    sum(layer.square().sum() for layer in stack(X, present)).backward()
    for v, z in zip(stack.weights, stack.logits, strict=True):
        assert v.grad is not None
        assert z.grad is not None
        torch.testing.assert_close(z.grad, (v * v.grad).sum(1), rtol=1e-12, atol=1e-14)


def test_a_query_that_is_not_at_hand_sends_nothing_on():
    stack, present = made(), HERE.clone()
    present[:, 1] = 0.0
    first, second = stack(X, present)
    assert not first[:, 1].any()
    assert not second[:, 1].any()
    assert first[:, 0].any()
    with torch.no_grad():
        stack.weights[0][1] += 1.0
    torch.testing.assert_close(stack(X, present)[1], second)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="layers = 0"):
        JomaStack(3, layers=0, units=2, scale=0.1)
    with pytest.raises(InputError, match="scale = 0"):
        JomaStack(3, layers=1, units=2, scale=0.0)
    with pytest.raises(InputError, match=r"must both be \(rows, 4\)"):
        made()(X[:, :3], HERE[:, :3])

"""Theorem 1 with positions: gradients against autograd, invariants as properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.checks.positions import drifts, theorem1_positions
from joma.core.errors import InputError
from joma.theory.activation import activation
from joma.theory.positions import directions


@pytest.mark.parametrize("angles", [None, np.array([0.2, 0.9, 1.4])])
def test_directions_are_those_of_autograd(angles):
    rng = np.random.default_rng(0)
    x, g = rng.random((4, 3, 5)), rng.normal(size=(4, 2))
    w, z, p = rng.normal(size=(2, 6)), rng.normal(size=5), rng.normal(size=3)
    step = directions(activation("softplus"), x, g, w, z, p, angles=angles)
    tw, tz, tp = (torch.tensor(one, requires_grad=True) for one in (w, z, p))
    turn = torch.ones(3) if angles is None else torch.tensor(np.cos(angles))
    scores = (torch.tensor(x) * torch.exp(turn[:, None] * tz + tp[:, None])).sum(dim=1)
    hidden = torch.nn.functional.softplus(scores @ tw[:, :-1].T + tw[:, -1])
    (torch.tensor(g) * hidden).sum(dim=1).mean().backward()
    for found, wanted in ((step.weights, tw), (step.logits, tz), (step.positions, tp)):
        np.testing.assert_allclose(found, wanted.grad.numpy(), rtol=1e-10, atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["gelu", "silu", "tanh", "softplus"]))
def test_both_invariants_hold_for_any_data_and_break_under_rotation(seed, name):
    content, balance, moved = drifts(seed, name)
    assert max(content, balance) < 1e-9
    assert moved > 1e-3
    assert min(drifts(seed, name, rotate=True)[:2]) > 1e-6


def test_claims():
    assert {claim.verdict for claim in theorem1_positions()} == {"holds"}


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(InputError, match="do not match"):
        directions(
            activation("gelu"), np.ones((4, 3, 5)), np.ones((4, 2)), np.ones((2, 6)), np.ones(4), np.ones(3)
        )

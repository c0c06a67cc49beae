from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from joma.core.errors import DivergenceError, InputError
from joma.data.next_token import graded_tokens
from joma.dynamics.token_flow import token_flow
from joma.dynamics.token_sgd import token_sgd

DATA = graded_tokens(last_tokens=2, next_per_last=2, common=2, distinct=3)
SMALL = {"eta_y": 1.0, "eta_z": 0.5, "seeds": [3], "steps": 12, "batch": 16, "length": 20}


def _plain(data, seed, *, eta_y, eta_z, steps, batch, length, momentum=0.9, normalised=True):
    """Sequences, one-hot vectors, autograd and torch's own SGD: nothing of joma but the random draws."""
    random = np.random.default_rng(seed)
    bound = data.logits**-0.5
    y = torch.tensor(random.uniform(-bound, bound, (data.contextual_tokens, data.logits)), requires_grad=True)
    z = torch.tensor(
        random.uniform(-bound, bound, (data.last_tokens, data.contextual_tokens)), requires_grad=True
    )
    fast = torch.optim.SGD([y], lr=eta_y, momentum=momentum)
    slow = torch.optim.SGD([z], lr=eta_z, momentum=momentum)
    losses = []
    for _ in range(steps):
        n, counts = data.sample_counts(batch, length, random)
        sequences = torch.tensor(np.stack([np.repeat(np.arange(row.size), row) for row in counts]))
        b = torch.softmax(z[torch.tensor(data.last_of_next[n])].gather(1, sequences), dim=1)
        one_hot = functional.one_hot(sequences, data.contextual_tokens).double()
        read = (b[:, :, None] * one_hot).sum(dim=1)
        if normalised:
            read = read / read.norm(dim=1, keepdim=True)
        loss = functional.cross_entropy(read @ y, torch.tensor(n))
        fast.zero_grad()
        slow.zero_grad()
        loss.backward()
        fast.step()
        slow.step()
        losses.append(loss.item())
    return y.detach().numpy(), z.detach().numpy(), losses


@pytest.mark.parametrize("normalised", [True, False])
def test_counts_do_what_sequences_one_by_one_do(normalised):
    runs = token_sgd(DATA, **SMALL, dtype="float64", normalised=normalised)
    rest = {key: value for key, value in SMALL.items() if key != "seeds"}
    y, z, losses = _plain(DATA, 3, **rest, normalised=normalised)
    np.testing.assert_allclose(runs.decoder[0, 0], y, atol=1e-12)
    np.testing.assert_allclose(runs.logits[-1, 0, 0], z, atol=1e-13)
    np.testing.assert_allclose(runs.loss[:, 0, 0], losses, atol=1e-13)


def test_a_run_is_the_same_bit_for_bit_whatever_runs_beside_it():
    together = token_sgd(DATA, **{**SMALL, "seeds": [5, 3], "eta_y": [4.0, 1.0], "eta_z": [0.1, 0.5]})
    alone = token_sgd(DATA, **SMALL)
    assert (together.logits[-1, 1, 1] == alone.logits[-1, 0, 0]).all()
    assert (together.decoder[1, 1] == alone.decoder[0, 0]).all()
    assert not (together.logits[-1, 0, 1] == alone.logits[-1, 0, 0]).all()


def test_prescribed_starts_classes_and_records():
    classes = np.random.default_rng(0).integers(0, 4, (1, 12, 16))
    zero = token_sgd(DATA, **SMALL, start="zero", classes=classes, record=[0, 5])
    assert zero.steps.tolist() == [0, 5, 12]
    assert (zero.logits[0] == 0).all()
    assert zero.loss[0, 0, 0] == pytest.approx(np.log(DATA.logits), rel=1e-6)
    given = token_sgd(DATA, **SMALL, start=(0.0, np.zeros((2, DATA.contextual_tokens))), classes=classes)
    assert (given.logits[-1] == zero.logits[-1]).all()


def test_small_steps_on_infinite_sequences_follow_the_flow():
    classes = np.tile(np.arange(4), 4)[None, None].repeat(200, axis=1)
    runs = token_sgd(
        DATA,
        eta_y=0.05,
        eta_z=0.02,
        seeds=[0],
        steps=200,
        batch=16,
        length=None,
        momentum=0.0,
        start="zero",
        classes=classes,
        dtype="float64",
    )
    flow = token_flow(DATA, eta_y=1.0, eta_z=0.4, times=[0.0, 10.0])
    np.testing.assert_allclose(runs.logits[-1, 0, 0], flow.logits[-1], atol=0.02 * np.abs(flow.logits).max())


def test_divergence_is_raised_or_reported_and_never_silent():
    wild = {**SMALL, "eta_y": [1.0, 1e38], "eta_z": [0.5, 1e38], "steps": 30}
    with pytest.raises(DivergenceError, match=r"1 of 2 runs .* seed 3, eta_y = 1e\+38"):
        token_sgd(DATA, **wild)
    runs = token_sgd(DATA, **wild, keep_going=True)
    assert runs.diverged_at[0, 0] == -1
    assert runs.diverged_at[0, 1] > 0
    with pytest.raises(DivergenceError, match="lower the learning rates"):
        runs.mass()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps = 0"),
        ({"batch": 0}, "batch = 0"),
        ({"length": 1}, "length = 1"),
        ({"momentum": 1.0}, "momentum = 1"),
        ({"seeds": []}, "seeds = "),
        ({"seeds": [1, 1]}, "different seeds"),
        ({"record": [13]}, r"record = \[13\]"),
        ({"eta_y": -1.0}, "eta_y = "),
        ({"eta_z": [[1.0]]}, "one-dimensional"),
        ({"classes": np.zeros((1, 2, 3), dtype=int)}, "classes of shape"),
        ({"start": "ones"}, "start = 'ones'"),
        ({"start": (np.zeros((2, 2)), 0.0)}, "starting Y has shape"),
        ({"start": (0.0, np.nan)}, "starting z must be finite"),
    ],
)
def test_bad_input_is_named(settings, message):
    with pytest.raises(InputError, match=message):
        token_sgd(DATA, **{**SMALL, **settings})

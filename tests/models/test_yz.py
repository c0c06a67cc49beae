from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.data.text import TokenText
from joma.models.yz import YZ, PairMatrix
from joma.theory.scan_snap.equations import velocities
from joma.training.evaluation import HeldOutText
from joma.training.loop import Recipe, reproducible, train


def densely(model: YZ, tokens: Tensor) -> Tensor:
    """The slides' equations, one-hot vectors, one position after the other."""
    batch, length = tokens.shape
    states = torch.nn.functional.one_hot(tokens, model.vocabulary_size).to(model.output.weight.dtype)
    layers = len(model.logit_matrices)
    for layer in range(layers):
        z, y = model.attention_matrix(layer), model.decoder_matrix(layer)
        decoded = torch.zeros_like(states)
        for b in range(batch):
            for t in range(length):
                seen = states[b, : t + 1]
                attention = torch.softmax(torch.stack([states[b, t] @ z @ s for s in seen]), 0)
                mixed = attention @ seen
                if model.residual:
                    mixed = mixed + states[b, t]
                if model.normalised:
                    mixed = mixed / mixed.norm()
                decoded[b, t] = mixed @ y
        states = decoded if layer == layers - 1 else torch.relu(decoded)
    return states


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize(("residual", "normalised"), [(True, True), (False, True), (True, False)])
def test_logits_are_the_equations(layers: int, rank: int | None, residual: bool, normalised: bool) -> None:
    torch.manual_seed(1)
    model = YZ(9, layers=layers, rank=rank, residual=residual, normalised=normalised).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    tokens = torch.randint(0, 9, (2, 6))
    torch.testing.assert_close(model(tokens), densely(model, tokens), rtol=1e-12, atol=1e-12)


def test_gradient_is_scan_and_snaps() -> None:
    """One layer, the last position of long sequences: minus the gradient is the theory's Y', z'."""
    random = np.random.default_rng(2)
    tokens_in_all, contextual = 7, 4
    counts = np.array([[5, 1, 2, 0], [1, 4, 0, 3]])
    last, following = np.array([4, 4]), np.array([5, 6])
    sequences = torch.tensor(
        [[*np.repeat(np.arange(4), row), m] for row, m in zip(counts, last, strict=True)]
    )
    model = YZ(tokens_in_all, residual=False).double()
    y = random.normal(size=(tokens_in_all, tokens_in_all))
    z = random.normal(size=(tokens_in_all, tokens_in_all))
    z[4, 4] = -1e9  # Scan&Snap's last token does not attend to itself
    with torch.no_grad():
        model.output.weight.copy_(torch.from_numpy(y.T))
        model.logit_matrices[0].left.copy_(torch.from_numpy(z))
    loss = torch.nn.functional.cross_entropy(model(sequences)[:, -1], torch.from_numpy(following))
    loss.backward()
    # The theory numbers the next tokens 0 ... K-1: reorder Y's columns.
    order = [5, 6, 0, 1, 2, 3, 4]
    expected = velocities(
        y[:contextual][:, order],
        z[4:5, :contextual],
        conditional=counts / counts.sum(1, keepdims=True),
        last_of_next=np.zeros(2, dtype=np.int64),
        class_probability=np.full(2, 0.5),
        eta_y=1.0,
        eta_z=1.0,
    )
    y_gradient = model.output.weight.grad.T[:contextual][:, order].numpy()
    z_gradient = model.logit_matrices[0].left.grad.numpy()
    np.testing.assert_allclose(-y_gradient, expected.decoder, atol=1e-12)
    np.testing.assert_allclose(-z_gradient[4, :contextual], expected.logits[0], atol=1e-12)
    assert not np.delete(z_gradient, 4, axis=0).any()


def test_attention_is_causal_and_observed_without_changing_the_output() -> None:
    torch.manual_seed(0)
    model = YZ(11, layers=3, rank=4)
    tokens = torch.randint(0, 11, (2, 6))
    seen: dict[int, Tensor] = {}
    watched = model.hidden_states(tokens, seen.__setitem__)
    assert watched.shape == (2, 6, model.width)
    assert torch.equal(watched, model.hidden_states(tokens))
    assert sorted(seen) == [0, 1, 2]
    for attention in seen.values():
        assert attention.shape == (2, 1, 6, 6)
        assert attention.triu(1).abs().max() == 0
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 1, 6))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    torch.testing.assert_close(model(tokens)[:, :4], model(changed)[:, :4])


@pytest.mark.parametrize("rank", [None, 8])
def test_both_forms_start_with_the_variance_of_a_linear_layer(rank: int | None) -> None:
    torch.manual_seed(0)
    entries = PairMatrix(300, rank).dense().detach()
    assert float(entries.var()) == pytest.approx(1 / 900, rel=0.15)
    assert abs(float(entries.mean())) < 3e-3


def test_an_identity_start_passes_mixed_states_on() -> None:
    torch.manual_seed(0)
    model = YZ(60, layers=2, residual=False, start="identity")
    assert torch.equal(model.decoder_matrix(0), torch.eye(60))
    assert float(model.decoder_matrix(1).detach().abs().max()) <= 60**-0.5
    with torch.no_grad():
        for layer in range(2):
            model.logit_matrices[layer].left.zero_()
    tokens = torch.tensor([[4, 7]])
    # uniform attention twice: e4, then unit(e4 + unit(e4 + e7))
    first, second = torch.eye(60)[4], (torch.eye(60)[4] + torch.eye(60)[7]) / 2**0.5
    expected = torch.stack([first, (first + second) / (first + second).norm()])
    torch.testing.assert_close(model.hidden_states(tokens)[0], expected)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("start", ["zero", "uniform"])
def test_trains_in_the_common_loop_and_is_measured_there(optimizer: str, start: str) -> None:
    tokens = np.arange(600) * 3 % 7  # the next token follows from the last one
    text = TokenText("made", tokens[:500], tokens[500:], tuple("abcdefg"))
    held_out = HeldOutText(text, length=8)
    rate = {"adam": 0.1, "sgd": 5.0}[optimizer]
    recipe = Recipe(steps=60, learning_rate=rate, optimizer=optimizer, batch=4, length=8, clip=None)
    with reproducible(0):
        model = YZ(7, start=start)
        rows = train(model, text, recipe, measure=held_out.measure, measure_at=[0, 60])
    losses = rows[rows["metric"] == "validation_loss"]["value"].to_list()
    assert losses[1] < 0.5 * losses[0]
    assert not model.output.bias.any()
    assert isinstance(rows, pd.DataFrame)
    assert set(rows["metric"]) == {"validation_loss", "attention_entropy"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"layers": 0}, "layers = 0"),
        ({"rank": 0}, "rank = 0"),
        ({"start": "zeros"}, "'zeros'"),
        ({"start": "zero", "layers": 2}, "never leave zero"),
        ({"start": "zero", "rank": 2}, "never leave zero"),
        ({"start": "identity", "rank": 2, "layers": 2}, "rank = 2"),
    ],
)
def test_bad_settings(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        YZ(5, **settings)
    with pytest.raises(InputError, match="longer than the model's 3"):
        YZ(5, longest=3)(torch.zeros(1, 4, dtype=torch.int64))

"""joma.branch: attention replaced, entropy held, rows of a parameter, another text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import joma
from joma.instruments.branch.attention import through_logits
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder

BATCHES = torch.randint(0, 7, (12, 4, 6), generator=torch.Generator().manual_seed(2))


def make(batches: Any = BATCHES) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = Decoder(7, layers=2, width=8, hidden=8, heads=2, dropout=0.0, longest=6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model, torch.optim.Adam(model.parameters(), lr=0.03), batches


class Spy:
    """A step that keeps what each of its calls attended with."""

    def __init__(self) -> None:
        self.seen: list[list[Tensor]] = []

    def __call__(self, model: Decoder, batch: Tensor) -> dict[str, Any]:
        layers: list[Tensor] = []
        hidden = model.hidden_states(batch, lambda _, p: layers.append(p.detach()))
        self.seen.append(layers)
        loss = functional.cross_entropy(model.output(hidden)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        return {"loss": loss, "entropy": float(entropy_of_probabilities(layers[1]).mean())}


def spy(way: Any, steps: int = 4) -> tuple[joma.BranchResult, list[list[Tensor]]]:
    """What is attended with in the branch, which is the last that is trained."""
    step = Spy()
    found = joma.branch(make, step, at=3, interventions={"it": way}, steps=steps, seeds=1, orders=0)  # type: ignore[arg-type]
    return found, step.seen[3 + steps :]


def curve(found: joma.BranchResult, branch: str, metric: str = "loss") -> np.ndarray:
    return found.table("curves").query("branch == @branch and metric == @metric")["value"].to_numpy()


def test_uniform_attention_sees_all_keys_alike() -> None:
    _, seen = spy("uniform-attention")
    expected = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    for layers in seen:
        for attention in layers:
            torch.testing.assert_close(attention, expected.expand_as(attention))


def test_temperature_divides_the_logits_and_one_is_the_twin_bit_for_bit() -> None:
    found, seen = spy("attention-temperature 1")
    assert (curve(found, "it") == curve(found, "twin")).all()
    _, hot = spy("attention-temperature 4")
    cold, warm = (
        seen[0][0],
        hot[0][0],
    )  # of the first layer at the first step, where the weights are the twin's
    torch.testing.assert_close(warm, torch.where(cold > 0, cold ** (1 / 4), 0).div_(
        torch.where(cold > 0, cold ** (1 / 4), 0).sum(-1, keepdim=True)
    ))  # fmt: skip


def test_the_mean_over_samples_takes_the_place_of_each() -> None:
    _, plain = spy("none")
    _, seen = spy("mean-attention")
    torch.testing.assert_close(seen[0][0], plain[0][0].mean(0, keepdim=True).expand_as(plain[0][0]))


def test_frozen_attention_is_that_of_the_model_where_branches_part() -> None:
    step, at, steps = Spy(), 3, 4
    joma.branch(make, step, at=at, interventions={"it": "frozen-attention"}, steps=steps, seeds=1, orders=0)  # type: ignore[arg-type]
    before, branch = step.seen[at + steps :: 2], step.seen[at + steps + 1 :: 2]  # step is called with both
    assert len(before) == len(branch) == steps
    for old, new in zip(before, branch, strict=True):
        for one, other in zip(old, new, strict=True):
            torch.testing.assert_close(one, other)
    still = joma.branch(make, Spy(), at=at, interventions={"it": "freeze *"}, steps=steps, seeds=1, orders=0)  # type: ignore[arg-type]
    entropies = [float(entropy_of_probabilities(layers[1]).mean()) for layers in before]
    np.testing.assert_allclose(curve(still, "it", "entropy"), entropies, rtol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"is_causal": True},
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril(1)},
        {
            "attn_mask": torch.linspace(-2, 2, 25)
            .view(5, 5)
            .masked_fill(torch.ones(5, 5).triu(1) > 0, -math.inf)
        },
        {"scale": 0.7},
        {"enable_gqa": True, "is_causal": True},
    ],
)
def test_attention_multiplied_out_is_that_of_the_kernel(given: dict[str, Any]) -> None:
    random = torch.Generator().manual_seed(0)
    heads = 2 if "enable_gqa" in given else 4
    query = torch.randn(3, 4, 5, 6, generator=random)
    key, value = torch.randn(2, 3, heads, 5, 6, generator=random)
    expected = functional.scaled_dot_product_attention(query, key, value, **given)
    with through_logits(nn.Identity(), lambda logits: logits):
        found = functional.scaled_dot_product_attention(query, key, value, **given)
    torch.testing.assert_close(found, expected)


class Kernel(nn.Module):
    """One layer of PyTorch's attention kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        query, key = self.query(x), self.key(x)
        one: Tensor = self.output(
            functional.scaled_dot_product_attention(query[:, None], key[:, None], x[:, None], is_causal=True)[
                :, 0
            ]
        )
        return one

    def entropy(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits = (self.query(x) @ self.key(x).mT / 8**0.5).masked_fill(
            torch.ones(6, 6).triu(1) > 0, -math.inf
        )
        return joma.entropy_of_logits(logits).mean()


def make_kernel() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = Kernel()
    return model, torch.optim.Adam(model.parameters(), lr=0.03), BATCHES.repeat(5, 1, 1)


def step_kernel(model: Kernel, batch: Tensor) -> dict[str, Any]:
    loss = functional.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    with torch.no_grad():
        return {"loss": loss, "entropy": float(model.entropy(batch))}


def test_entropy_is_held_and_kept_above_and_below() -> None:
    ways = {
        "held": "hold-entropy 0.8 times 100",
        "high": "entropy-floor 0.9 times 100",
        "free": "entropy-floor 0.01",
        "low": "entropy-ceiling 0.5 times 100",
        "here": "hold-entropy times 1000",
    }
    found = joma.branch(make_kernel, step_kernel, at=2, interventions=ways, steps=50, seeds=1, orders=0)  # type: ignore[arg-type]
    last = {name: curve(found, name, "entropy")[-10:].mean() for name in (*ways, "twin")}
    first = curve(found, "twin", "entropy")[0]
    assert first > 1.0
    assert last["held"] == pytest.approx(0.8, abs=0.05)
    assert last["high"] > 0.87
    assert last["low"] < 0.55
    assert last["here"] == pytest.approx(first, abs=0.05)
    assert (curve(found, "free") == curve(found, "twin")).all()


def test_rows_of_a_parameter_are_frozen() -> None:
    def step(model: Decoder, batch: Tensor) -> dict[str, Any]:
        weight = model.get_parameter("layers.0.in_projection.weight").detach()
        return {**Spy()(model, batch), "first": float(weight[:16].sum()), "rest": float(weight[16:].sum())}

    ways = {
        "it": "freeze layers.*.in_projection.*[:16]",
        "back": "rewind layers.0.in_projection.weight[16:] to 1",
    }
    found = joma.branch(make, step, at=3, interventions=ways, steps=4, seeds=1, orders=0)  # type: ignore[arg-type]
    assert np.ptp(curve(found, "it", "first")) == 0
    assert np.ptp(curve(found, "it", "rest")) > 0
    assert curve(found, "back", "first")[0] == curve(found, "twin", "first")[0]
    assert curve(found, "back", "rest")[0] != curve(found, "twin", "rest")[0]


def test_another_text_is_read_in_the_place_of_the_twins() -> None:
    ways = {"same": BATCHES.clone(), "other": (BATCHES + 1) % 7}
    found = joma.branch(make, Spy(), at=3, interventions=ways, steps=4, seeds=1, orders=0)  # type: ignore[arg-type]
    assert (curve(found, "same") == curve(found, "twin")).all()
    assert (curve(found, "other") != curve(found, "twin")).all()


class Drawn:
    """Batches that are never the same."""

    def __getitem__(self, number: int) -> Tensor:
        return torch.randint(0, 7, (4, 6))


def no_attention() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = nn.Linear(6, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(12, 2, 6)


def square(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("uniform-attention", "sees no attention"),
        ("frozen-attention", "sees no attention"),
        ("hold-entropy", "sees no attention"),
        ("entropy-floor", "needs a number of nats"),
        ("entropy-floor x", "entropy-floor 1.5 times 10"),
        ("hold-entropy 1 times 0", "strength of its term above 0"),
        ("attention-temperature", "attention-temperature 2"),
        ("attention-temperature 0", "a temperature is above 0"),
        ("uniform-attention layers.*", "the others take none"),
        ("freeze weight[4:]", "names no row of weight"),
        ("uniform-atention", "did you mean 'uniform-attention'"),
        (Drawn(), "another batch at every call"),
    ],
)
def test_bad_input(way: Any, message: str) -> None:
    with pytest.raises(joma.InputError, match=message) as caught:
        joma.branch(no_attention, square, at=1, interventions={"it": way}, steps=2, seeds=1)  # type: ignore[arg-type]
    assert str(caught.value).startswith("branch: ")
    assert str(caught.value).count(". ") == 0

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from joma.core.errors import InputError
from joma.models.gpt_ensemble import GPTEnsemble, GPTShape

SMALL = GPTShape(vocabulary_size=11, width=8, layers=2, heads=2, length=6)
VARIANTS = [
    SMALL,
    dataclasses.replace(SMALL, norm="post", activation="relu", heads=1),
    dataclasses.replace(SMALL, qk_norm=True, heads=4),
]


def alone(
    shape: GPTShape, weights: dict[str, torch.Tensor], tokens: torch.Tensor
) -> tuple[torch.Tensor, list]:
    """One network's loss by the textbook, float64, attention by attention; and its entropies and logits."""
    weights = {name: weight.double() for name, weight in weights.items()}
    pre, size = shape.norm == "pre", shape.width // shape.heads

    def norm(x, name):
        return F.layer_norm(x, (shape.width,), weight=weights[f"{name}_gain"])

    total, seen = torch.zeros((), dtype=torch.float64), []
    entropies = torch.zeros(shape.layers, shape.heads, dtype=torch.float64)
    largest = torch.full((shape.layers, shape.heads), -math.inf, dtype=torch.float64)
    for row in tokens:
        x = weights["embedding"][row[:-1]] + weights["positions"]
        for layer in range(shape.layers):
            read = norm(x, f"{layer}.attention") if pre else x
            mixed = []
            for head in range(shape.heads):
                part = slice(head * size, (head + 1) * size)
                q, k, v = (read @ weights[f"{layer}.{name}"][:, part] for name in ("query", "key", "value"))
                if shape.qk_norm:
                    gains = weights[f"{layer}.qk_gain"]
                    q = q / q.square().mean(1, keepdim=True).sqrt() * gains[0]
                    k = k / k.square().mean(1, keepdim=True).sqrt() * gains[1]
                out = []
                for i in range(len(q)):
                    logits = q[i] @ k[: i + 1].T / math.sqrt(size)
                    p = logits.softmax(0)
                    out.append(p @ v[: i + 1])
                    largest[layer, head] = max(largest[layer, head], logits.max())
                    if i:
                        share = torch.special.entr(p).sum() / math.log(i + 1)
                        entropies[layer, head] += share / (len(q) - 1) / len(tokens)
                mixed.append(torch.stack(out))
            x = x + torch.cat(mixed, 1) @ weights[f"{layer}.mix"]
            x = x if pre else norm(x, f"{layer}.attention")
            read = norm(x, f"{layer}.mlp") if pre else x
            hidden = read @ weights[f"{layer}.lower"]
            hidden = F.gelu(hidden, approximate="tanh") if shape.activation == "gelu" else hidden.relu()
            x = x + hidden @ weights[f"{layer}.upper"]
            x = x if pre else norm(x, f"{layer}.mlp")
        x = norm(x, "final") if pre else x
        total = total + F.cross_entropy(x @ weights["output"], row[1:]) / len(tokens)
    seen = [entropies, largest]
    return total, seen


@pytest.mark.parametrize("shape", VARIANTS, ids=["gpt", "decoder", "qk-norm"])
def test_each_network_is_the_textbook_one(shape: GPTShape) -> None:
    ensemble = GPTEnsemble(shape, seeds=[3, 4, 5])
    with torch.no_grad():
        for weight in ensemble.weights.values():
            weight.mul_(torch.rand(3).view(3, *[1] * (weight.ndim - 1)) + 2)
    tokens = torch.randint(0, 11, (3, 4, 7), generator=torch.Generator().manual_seed(0))
    losses, seen = ensemble.losses(tokens[..., :-1], tokens[..., 1:])
    for n in range(3):
        weights = {name: weight[n].detach() for name, weight in ensemble.weights.items()}
        loss, (entropies, largest) = alone(shape, weights, tokens[n])
        assert losses[n].item() == pytest.approx(loss.item(), rel=1e-4)
        assert torch.allclose(seen.normalised_entropy[n].double(), entropies, atol=1e-5)
        assert torch.allclose(seen.largest_logit[n].double(), largest, rtol=1e-4, atol=1e-5)


def test_a_network_does_not_depend_on_its_neighbours() -> None:
    tokens = torch.randint(0, 11, (2, 4, 7), generator=torch.Generator().manual_seed(1))
    pair = GPTEnsemble(SMALL, seeds=[1, 2])
    single = GPTEnsemble(SMALL, seeds=[2])
    with torch.no_grad():
        pair.weights["0.query"][0] = torch.nan
    losses, _ = pair.losses(tokens[..., :-1], tokens[..., 1:])
    own, seen = single.losses(tokens[1:, :, :-1], tokens[1:, :, 1:])
    losses.sum().backward()
    own.sum().backward()
    assert losses[0].isnan()
    assert losses[1].item() == pytest.approx(own[0].item(), rel=1e-5)
    for name, weight in single.weights.items():
        assert torch.allclose(pair.weights[name].grad[1], weight.grad[0], atol=1e-6)
    assert seen.residual_kurtosis.shape == seen.residual_rms.shape == (1, 2)


def test_bad_heads() -> None:
    with pytest.raises(InputError, match="multiple of heads"):
        GPTShape(vocabulary_size=5, width=8, heads=3)

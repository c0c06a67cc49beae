"""attention_entropy(differentiable=True) beside dense autograd in float64, and by finite differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import joma
from joma.measures.attention import compiled
from joma.measures.attention import entropy as module

LAYOUTS = (
    "plain",
    "causal",
    "cache",
    "window",
    "padding",
    "mask",
    "bias",
    "alibi",
    "softcap",
    "sinks",
    "rows",
)


def case(layout: str, rows: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], dict[str, Any]]:
    """Queries, keys, and perhaps a bias or sinks, which all carry gradients; and the other arguments."""
    random = torch.Generator().manual_seed(LAYOUTS.index(layout))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

    keys = rows + 9 if layout == "cache" else rows
    tensors = [normal(2, 4, rows, 8), normal(2, 2, keys, 8)]
    arguments: dict[str, Any] = {"causal": layout not in ("plain", "padding", "mask", "bias")}
    if layout == "window":
        arguments["window"] = max(1, rows // 3)
    elif layout == "padding":
        arguments["mask"] = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        arguments["mask"][1, ..., : keys // 3] = False
    elif layout == "mask":
        arguments["mask"] = torch.rand(2, 4, rows, keys, generator=random) < 0.6
        arguments["mask"][0, 0, 0] = False  # a row that sees nothing
    elif layout == "bias":
        tensors.append(normal(4, rows, keys))
    elif layout == "alibi":
        tensors.append(normal(4, 1, keys))
    elif layout == "softcap":
        arguments["softcap"] = 1.5
    elif layout == "sinks":
        tensors.append(normal(4))
    elif layout == "rows":
        arguments["rows"] = list(range(0, rows, 3))
    return tensors, arguments


def measured(layout: str, tensors: list[Tensor], arguments: dict[str, Any]) -> joma.AttentionEntropy:
    named = dict(zip(("query", "key", "sinks" if layout == "sinks" else "bias"), tensors, strict=False))
    return joma.attention_entropy(**named, **arguments, differentiable=True)


def dense(layout: str, tensors: list[Tensor], arguments: dict[str, Any]) -> Tensor:
    query, key = tensors[0].double(), tensors[1].double().repeat_interleave(2, 1)
    rows, keys = query.shape[2], key.shape[2]
    scores = query @ key.mT * 8**-0.5
    if layout == "softcap":
        scores = 1.5 * torch.tanh(scores / 1.5)
    if layout in ("bias", "alibi"):
        scores = scores + tensors[2].double()
    own, place = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    keep = torch.ones(rows, keys, dtype=torch.bool)
    if arguments["causal"]:
        keep = keep & (place <= own)
    if layout == "window":
        keep = keep & (place > own - arguments["window"])
    keep = keep & arguments.get("mask", torch.tensor(True))
    scores = scores.masked_fill(~keep, -math.inf)
    if layout == "sinks":
        column = tensors[2].double()[None, :, None, None].expand(2, -1, rows, 1)
        scores = torch.cat([scores, column], -1)
    seen = (scores > -math.inf).any(-1)
    log_p = scores.masked_fill(~seen[..., None], 0.0).log_softmax(-1)
    terms = torch.where(log_p > -math.inf, log_p.exp() * log_p, 0.0)
    entropy = -torch.where(torch.isfinite(log_p), terms, 0.0).sum(-1)
    entropy = torch.where(seen, entropy, torch.nan)
    return entropy[..., arguments["rows"]] if layout == "rows" else entropy


def compare(layout: str, rows: int, dtype: torch.dtype = torch.float64) -> tuple[str, float]:
    """The route, and the largest deviation of a gradient from dense autograd's, relative to its largest."""
    tensors, arguments = case(layout, rows, dtype)
    found = measured(layout, tensors, arguments)
    weight = torch.randn(found.entropy.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.nansum(found.entropy * weight).backward()
    ours = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    torch.nansum(dense(layout, tensors, arguments) * weight).backward()
    worst = 0.0
    for own, tensor in zip(ours, tensors, strict=True):
        assert own is not None
        assert tensor.grad is not None
        assert own.dtype == tensor.dtype
        size = tensor.grad.abs().max()
        worst = max(worst, float(((own - tensor.grad).abs() / size).max()))
    return found.route, worst


@pytest.mark.parametrize("rows", [11, 150])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_that_of_dense_autograd(layout: str, rows: int) -> None:
    route, worst = compare(layout, rows)
    assert route == ("dense" if rows == 11 else route)
    assert worst < 1e-10


@pytest.mark.parametrize("forced", ["compiled", "flash", "blocked"])
@pytest.mark.parametrize("layout", ["plain", "causal", "cache", "padding", "sinks", "rows"])
def test_on_every_route(forced: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FEWEST", 0)
    if forced != "compiled":
        monkeypatch.setattr(module, "compiled_moments", lambda scores, need: None)
    if forced == "blocked":
        monkeypatch.setattr(module, "flash_moments", lambda scores, need: None)
    # The compiled kernel has no float64.
    route, worst = compare(layout, 200, torch.float32 if forced == "compiled" else torch.float64)
    assert route == forced
    assert worst < (3e-6 if forced == "compiled" else 1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_by_finite_differences(layout: str) -> None:
    tensors, arguments = case(layout, 6)

    def entropy(*given: Tensor) -> Tensor:
        return measured(layout, list(given), arguments).entropy.nan_to_num(0.0)

    assert torch.autograd.gradcheck(entropy, tensors, atol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_float32(layout: str) -> None:
    assert compare(layout, 150, torch.float32)[1] < 3e-6


def test_small_blocks_change_nothing() -> None:
    found = []
    for block_size in (1, 64, 1 << 20):
        (query, key), arguments = case("causal", 40)
        joma.attention_entropy(
            query, key, **arguments, block_size=block_size, differentiable=True
        ).entropy.sum().backward()
        found.append(torch.cat([query.grad.flatten(), key.grad.flatten()]))  # type: ignore[union-attr]
    torch.testing.assert_close(found[0], found[2], atol=1e-13, rtol=0)
    torch.testing.assert_close(found[1], found[2], atol=1e-13, rtol=0)


def test_it_trains() -> None:
    """A ceiling on the entropy is met by gradient descent, in bfloat16 too."""
    torch.manual_seed(0)
    query = torch.randn(1, 2, 30, 8, dtype=torch.bfloat16).requires_grad_()
    key = torch.randn(1, 2, 30, 8, dtype=torch.bfloat16).requires_grad_()
    start = joma.attention_entropy(query, key, causal=True).entropy.mean()
    optimizer = torch.optim.SGD([query, key], lr=20.0)
    for _ in range(40):
        entropy = joma.attention_entropy(query, key, causal=True, differentiable=True).entropy.mean()
        optimizer.zero_grad()
        (entropy - 0.5 * start).square().backward()
        optimizer.step()
    assert float(entropy.detach()) == pytest.approx(0.5 * float(start), rel=0.02)


def test_without_the_argument_it_is_detached() -> None:
    (query, key), arguments = case("causal", 11)
    assert not joma.attention_entropy(query, key, **arguments).entropy.requires_grad
    found = joma.attention_entropy(query, key, **arguments, statistics=("renyi_2",), differentiable=True)
    assert found.entropy.requires_grad
    assert not found["renyi_2"].requires_grad
    torch.testing.assert_close(found.entropy, joma.attention_entropy(query, key, **arguments).entropy)
    with torch.no_grad():
        assert not measured("causal", [query, key], arguments).entropy.requires_grad


def test_its_gradient_has_none() -> None:
    (query, key), arguments = case("causal", 11)
    entropy = measured("causal", [query, key], arguments).entropy.sum()
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(entropy * weight, query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_change_in_place_is_noticed() -> None:
    (query, key), arguments = case("causal", 11)
    copied = query * 1
    entropy = measured("causal", [copied, key], arguments).entropy.sum()
    copied.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        entropy.backward()

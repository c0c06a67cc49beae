"""Softmaxes that code takes itself: which are attention, which axis is which, and slices put together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.watch.watch import Watch, watch


class Code(nn.Module):
    """A model that is one function, in a module of its own, that knows its number of heads."""

    def __init__(self, function: Callable[..., Tensor], heads: int | None = None, **parts: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.forward = lambda *given: function(*given)  # type: ignore[method-assign]
        if heads is not None:
            self.inner.num_heads = heads
        for name, part in parts.items():
            self.inner.add_module(name, part)

    def forward(self, *given: Tensor) -> Tensor:
        out: Tensor = self.inner(*given)
        return out


def entropy(scores: Tensor) -> Tensor:
    return torch.special.entr(scores.double().softmax(-1)).sum(-1)


def run(model: nn.Module, *given: Tensor) -> Watch:
    plain = model(*[one.clone() for one in given])
    with torch.no_grad(), watch(model) as seen:
        assert torch.equal(model(*given), plain)
    return seen


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    query, key = 2 * torch.randn(2, *shape, generator=generator)
    return query, key


def products(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT / query.shape[-1] ** 0.5


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_heads_are_never_taken_from_the_batch(batch: int) -> None:
    query, key = pair(batch, 5, 8)
    seen = run(Code(lambda q, k: products(q, k).softmax(-1) @ k, heads=2), query, key)
    expected = entropy(products(query, key)).mean().item()
    assert seen.table()["value"].tolist() == pytest.approx([expected], abs=1e-5)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("keys", ["last", "second"])
def test_heads_and_keys_at_any_place(batch: int, keys: str) -> None:
    query, key = pair(batch, 6, 2, 8)

    def heads_third(q: Tensor, k: Tensor) -> Tensor:
        scores = torch.einsum("bihd,bjhd->bihj", q, k) / 8**0.5
        return torch.einsum("bihj,bjhd->bihd", scores.softmax(-1), k)

    def keys_second(q: Tensor, k: Tensor) -> Tensor:
        scores = torch.einsum("bihd,bjhd->bjhi", q, k) / 8**0.5
        return torch.einsum("bjhi,bjhd->bihd", scores.softmax(1), k)

    seen = run(Code(heads_third if keys == "last" else keys_second, heads=2), query, key)
    expected = entropy(products(query.transpose(1, 2), key.transpose(1, 2))).mean((0, 2))
    assert seen.table()["value"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert set(seen.table()["count"]) == {6 * batch}


def test_scores_that_are_overwritten() -> None:
    query, key = pair(1, 2, 5, 8)

    def out(q: Tensor, k: Tensor) -> Tensor:
        scores = products(q, k)
        torch.softmax(scores, -1, out=scores)
        return scores @ k

    def copied(q: Tensor, k: Tensor) -> Tensor:
        scores = products(q, k)
        scores.copy_(scores.softmax(-1)).mul_(1.0)
        return scores @ k

    def zeroed(q: Tensor, k: Tensor) -> Tensor:
        scores = products(q, k)
        probabilities = scores.softmax(-1)
        scores.zero_()
        return probabilities @ k

    expected = entropy(products(query, key)).mean((0, 2)).tolist()
    for function in (out, copied, zeroed):
        assert run(Code(function), query, key).table()["value"].tolist() == pytest.approx(expected, abs=1e-5)


def test_slices_are_put_together() -> None:
    query, key = pair(4, 8, 6, 8)
    flat = query.flatten(0, 1), key.flatten(0, 1)

    def in_place(q: Tensor, k: Tensor) -> Tensor:
        scores = torch.einsum("bid,bjd->bij", q, k) / 8**0.5
        for number in range(len(scores)):
            scores[number] = scores[number].softmax(-1)
        return torch.einsum("bij,bjd->bid", scores, k)

    def stacked(q: Tensor, k: Tensor) -> Tensor:
        slices = [products(q[:, h], k[:, h]).softmax(-1) for h in range(q.shape[1])]
        return torch.stack(slices, 1) @ k

    def chunks(q: Tensor, k: Tensor) -> Tensor:
        slices = [products(q[:, :, i : i + 2], k).softmax(-1) for i in range(0, q.shape[2], 2)]
        return torch.cat(slices, 2) @ k

    rows = entropy(products(query, key))
    by_sample = run(Code(in_place, heads=8), *flat).table()
    assert by_sample["count"].sum() == 192
    assert (by_sample["value"] * by_sample["count"]).sum() / 192 == pytest.approx(
        rows.mean().item(), abs=1e-5
    )
    for function in (stacked, chunks):
        table = run(Code(function, heads=8), query, key).table()
        assert table["value"].tolist() == pytest.approx(rows.mean((0, 2)).tolist(), abs=1e-5)
        assert set(table["count"]) == {24}


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-1).mT @ v)


def efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def projected(function: Callable[..., Tensor], channels: int = 8) -> nn.Module:
    parts = {name: nn.Linear(8, channels) for name in "qkv"}
    return Code(lambda x: function(*(parts[name](x) for name in "qkv")), **parts)


def channel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q.mT @ k).softmax(-1) @ v.mT


class Router(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.gate, self.experts, self.code = nn.Linear(8, 4), nn.Linear(8, 32), nn.Embedding(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "codes":
            return (x @ self.code.weight.T).softmax(-1) @ self.code.weight
        weights = self.gate(x).softmax(-1)
        if self.how == "pooled":
            return weights @ self.experts(x.mean(1)).reshape(-1, 4, 8)
        if (
            self.how == "dispatch"
        ):  # slots gather tokens: attention of learned queries, and then its transpose
            return weights @ (self.gate(x).softmax(-1).mT @ x)
        return torch.einsum("bte,bted->btd", weights, self.experts(x).reshape(*x.shape[:2], 4, 8))


def slots(inputs: Tensor, slot: Tensor, value: Tensor) -> Tensor:
    return products(inputs, slot).softmax(-1).mT @ value


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        (Code(linear_attention), [(1, 2, 32, 8)] * 3),
        (Code(efficient_attention), [(1, 2, 32, 8)] * 3),
        (projected(linear_attention), [(2, 9, 8)]),
        (projected(efficient_attention), [(2, 9, 8)]),
        (projected(channel_attention), [(2, 9, 8)]),
        (Code(slots), [(2, 9, 8), (2, 3, 8), (2, 9, 8)]),
        *((Router(how), [(2, 10, 8)]) for how in ("codes", "pooled", "dispatch", "tokens")),
    ],
)
def test_what_is_no_attention_is_named(model: nn.Module, shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(3)
    seen = run(model, *(torch.randn(shape, generator=generator) for shape in shapes))
    assert set(seen.coverage()["status"]) == {"no attention"}
    with pytest.raises(InputError, match="no attention was seen"):
        seen.table()


def test_attention_whose_queries_or_scores_are_learned() -> None:
    """Pooling by learned queries, latents that ask, additive scores: all over tokens."""
    torch.manual_seed(0)
    x = torch.randn(3, 7, 8)
    query, hidden = nn.Linear(8, 2, bias=False), nn.Linear(8, 1, bias=False)
    latents = nn.Embedding(4, 8)

    def pooling(x: Tensor) -> Tensor:
        return query(x).mT.softmax(-1) @ x

    def asking(x: Tensor) -> Tensor:
        return products(latents.weight, x).softmax(-1) @ x

    def additive(x: Tensor) -> Tensor:
        scores = hidden(torch.tanh(x[:, :, None] + x[:, None])).squeeze(-1)
        return scores.softmax(-1) @ x

    with torch.no_grad():
        wanted = [
            entropy(query(x).mT),
            entropy(products(latents.weight, x)),
            entropy(hidden(torch.tanh(x[:, :, None] + x[:, None])).squeeze(-1)),
        ]
    for function, rows in zip((pooling, asking, additive), wanted, strict=True):
        table = run(Code(function, q=query, h=hidden, latents=latents), x).table()
        assert table["value"].tolist() == pytest.approx([rows.mean().item()], abs=1e-5)
        assert table["count"].tolist() == [rows.numel()]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_single_key_is_attended_to(dropout: float) -> None:
    query, key = pair(2, 3, 1, 8)

    def one(q: Tensor, k: Tensor) -> Tensor:
        return nn.functional.dropout(products(q, k).softmax(-1), dropout) @ k

    model = Code(one)
    torch.manual_seed(0)
    with watch(model) as seen:
        model(query, key)
    assert seen.table()["value"].tolist() == [0.0] * 3
    assert seen.table()["count"].tolist() == [2] * 3


def test_low_scores_of_ones_own_are_not_hidden() -> None:
    query, key = pair(1, 2, 5, 8)
    low = torch.tensor([100.0, 40_000.0])[:, None, None]
    seen = run(Code(lambda q, k: (products(q, k) - low).softmax(-1) @ k), query, key)
    expected = entropy(products(query, key) - low).mean((0, 2))
    assert seen.table()["value"].tolist() == pytest.approx(expected.tolist(), abs=1e-2)
    assert set(seen.table()["count"]) == {5}


@pytest.mark.parametrize("low", [-1e4, -3e4, -65_504.0, -1e9, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("kernel", [False, True])
def test_masks_of_any_large_negative_number(low: float, kernel: bool) -> None:
    """Causal and padded, the two summed as old code does; 7 keys, of which the first two are padding."""
    query, key = pair(1, 2, 7, 8)
    future, padding = torch.ones(7, 7).triu(1) * 1.0, torch.tensor([1.0, 1, 0, 0, 0, 0, 0])
    hidden = (future + padding) > 0
    mask = torch.zeros(7, 7).masked_fill(future > 0, low) + torch.zeros(7).masked_fill(padding > 0, low)

    def attention(q: Tensor, k: Tensor) -> Tensor:
        if kernel:
            return nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask[None, None])
        return (products(q, k) + mask).softmax(-1) @ k

    model = Code(attention)
    with torch.no_grad(), watch(model, statistics=["entropy"], reduce="position") as seen:
        model(query, key)
    table = seen.table()
    rows = entropy(products(query, key).masked_fill(hidden, -torch.inf))[0]
    for head in range(2):
        own = table[(table["head"] == head) & (table["position"] >= 2)]
        assert own["value"].tolist() == pytest.approx(rows[head, 2:].tolist(), abs=1e-5)

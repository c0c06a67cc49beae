"""Of which rows a padding mask speaks: those of the tokens that ask and are asked."""

from __future__ import annotations

import math

import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.watch.watch import watch

PADDING = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)


def seen(model: nn.Module, *args: Tensor, **kwargs: object) -> pandas.DataFrame:
    with torch.no_grad(), watch(model.eval()) as watched:
        model(*args, **kwargs)
    return watched.table().sort_values(["module", "call", "head"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("queries", [4, 3, 1])
def test_padding_of_the_keys_of_cross_attention(queries: int, need_weights: bool) -> None:
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    memory = torch.randn(2, 4, 16)
    table = seen(
        model,
        torch.randn(2, queries, 16),
        memory,
        memory,
        key_padding_mask=PADDING,
        need_weights=need_weights,
    )
    assert set(table["count"]) == {2 * queries}


def test_padding_of_a_decoders_memory() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1)
    tokens, memory = torch.randn(2, 2, 4, 16)
    assert set(seen(decoder, tokens, memory, memory_key_padding_mask=PADDING)["count"]) == {8}
    own = seen(decoder, tokens, memory, tgt_key_padding_mask=PADDING)
    assert own.groupby("module")["count"].first().tolist() == [6, 6]


class Latents(nn.Module):
    """Queries of its own, as many as one likes, that ask masked inputs, layer after layer."""

    def __init__(self, number: int, how: str) -> None:
        super().__init__()
        self.query, self.how = nn.Parameter(torch.randn(number, 16)), how
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        latents, keep = self.query.expand(len(x), -1, -1), attention_mask[:, None, None, :] > 0
        for layer in self.layers:
            query, key = layer(latents)[:, None], layer(x)[:, None]
            if self.how == "kernel":
                out = F.scaled_dot_product_attention(query, key, x[:, None], attn_mask=keep)
            else:
                scores = (query @ key.mT).masked_fill(~keep, torch.finfo(x.dtype).min)
                out = scores.softmax(-1) @ x[:, None]
            latents = latents + out[:, 0]
        return latents


@pytest.mark.parametrize("how", ["kernel", "softmax"])
@pytest.mark.parametrize("number", [4, 9])
def test_latents_that_ask_masked_inputs(number: int, how: str) -> None:
    mask = torch.zeros(2, 9, dtype=torch.long)
    mask[:, :5] = 1
    table = seen(Latents(number, how), torch.randn(2, 9, 16), mask)
    assert set(table["count"]) == {2 * number}
    assert (table["value"] <= math.log(5)).all()


class Some(nn.Module):
    """Every second token asks, or the first, or the last ones."""

    def __init__(self, which: slice) -> None:
        super().__init__()
        self.which, self.attention = which, nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        out: Tensor = self.attention(x[:, self.which], x, x, key_padding_mask=attention_mask == 0)[0]
        return out


@pytest.mark.parametrize("which", [slice(None, None, 2), slice(0, 1), slice(-3, None)])
def test_some_tokens_that_ask_all(which: slice) -> None:
    mask = torch.ones(1, 8, dtype=torch.long)
    mask[0, 4:] = 0
    model = Some(which)
    with torch.no_grad(), watch(model) as watched:
        model(torch.randn(1, 8, 16), mask)
    assert set(watched.table()["count"]) == {len(range(8)[which])}
    assert "the padding mask speaks of 8 tokens" in watched.coverage()["reason"].item()


class OwnMask(nn.Module):
    def forward(self, query: Tensor, attention_mask: Tensor) -> Tensor:
        scores = query @ query.mT / 8**0.5
        return (scores + attention_mask[:, None, None]).softmax(-1) @ query


@pytest.mark.parametrize("low", [-1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("padded", [0, 2])
def test_a_mask_that_is_added(low: float, padded: int) -> None:
    mask = torch.zeros(2, 6)
    mask[0, 6 - padded :] = low
    table = seen(nn.Sequential(OwnMask())[0], torch.randn(2, 2, 6, 8), attention_mask=mask)
    assert set(table["count"]) == {12 - padded}


class Towers(nn.Module):
    """Text and image with as many tokens; only one of them is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

    def forward(self, text: Tensor, image: Tensor, attention_mask: Tensor) -> Tensor:
        read: Tensor = self.text(text, text, text, key_padding_mask=attention_mask == 0)[0]
        causal = torch.ones(10, 10, dtype=torch.bool).triu(1)
        seen: Tensor = self.image(image, image, image, attn_mask=causal)[0]
        return read + seen


def test_the_mask_of_the_other_tower() -> None:
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[0, 6:] = 0
    table = seen(Towers(), torch.randn(2, 10, 16), torch.randn(2, 10, 16), mask)
    assert table.groupby("module")["count"].first().to_dict() == {"image": 20, "text": 16}


class Loop(nn.Module):
    """Sample by sample."""

    def forward(self, query: Tensor, attention_mask: Tensor) -> Tensor:
        keep = attention_mask[:, None, None, :] > 0
        out = [
            F.scaled_dot_product_attention(q[None], q[None], q[None], attn_mask=k[None])
            for q, k in zip(query, keep, strict=True)
        ]
        return torch.cat(out)


def test_samples_one_by_one_in_a_padded_batch_are_refused() -> None:
    mask = torch.ones(2, 6, dtype=torch.long)
    query = torch.randn(2, 2, 6, 8)
    assert seen(Loop(), query, mask)["count"].tolist() == [6] * 4
    mask[0, 4:] = 0
    with pytest.raises(InputError, match="1 samples at a time in a batch of 2 that holds padding"):
        seen(Loop(), query, mask)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.key = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.cache = torch.empty(0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        key = self.key(x)
        self.cache = torch.cat([self.cache, key], 1) if self.cache.numel() else key
        queries, keys = x.shape[1], self.cache.shape[1]
        keep = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        keep = keep & (attention_mask[:, None] > 0)
        return F.scaled_dot_product_attention(
            x[:, None], self.cache[:, None], self.cache[:, None], keep[:, None]
        )


def test_decoding_with_a_cache_and_padding_on_the_left() -> None:
    model, ids = Cached(), torch.randint(0, 20, (2, 6))
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0
    with torch.no_grad(), watch(model) as watched:
        model(ids[:, :4], attention_mask=mask[:, :4])
        model(ids[:, 4:5], attention_mask=mask[:, :5])
        model(ids[:, 5:], attention_mask=mask)
    assert watched.table()["count"].tolist() == [6, 2, 2]

"""R8: masks, heads and batch are told by what tensors are and how they go into the run, not by names."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import joma
from joma.core.errors import InputError

SOURCE = "\n".join(path.read_text() for path in Path(joma.__file__).parent.rglob("*.py"))
FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.text(string.ascii_lowercase, min_size=7, max_size=12).map(lambda name: f"zq{name}_")


def entropies(scores: Tensor) -> Tensor:
    return torch.special.entr(scores.double().softmax(-1)).sum(-1)


def heads_of(table: pandas.DataFrame) -> list[float]:
    parts = [
        (head, float(np.average(own["value"], weights=own["count"]))) for head, own in table.groupby("head")
    ]
    assert [head for head, _ in parts] == list(range(len(parts)))
    return [value for _, value in parts]


def seen(model: nn.Module, *args: Any, **kwargs: Any) -> pandas.DataFrame:
    with torch.no_grad():
        plain = model(*args, **kwargs)
        with joma.watch(model) as watched:
            assert torch.equal(model(*args, **kwargs), plain)
    return watched.table()


class Own(nn.Module):
    """Attention of one's own over (batch, tokens, features), in every way to lay heads out."""

    def __init__(self, heads: int, size: int, how: str, name: str = "") -> None:
        super().__init__()
        self.count, self.how = heads, how
        if name:
            setattr(self, name, heads)
        self.one, self.two = (nn.Linear(heads * size, heads * size) for _ in range(2))

    def scores(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        query, key = (
            f(z).unflatten(-1, (self.count, -1)).transpose(1, 2) for f, z in ((self.one, x), (self.two, y))
        )
        return 2 * query, key

    def forward(self, x: Tensor) -> Tensor:
        (query, key), h = self.scores(x, x), self.count
        if self.how == "merged":
            query, key = query.flatten(0, 1), key.flatten(0, 1)
        if self.how in ("heads first", "kernel, heads first"):
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        if self.how == "merged, heads first":
            query, key = (z.transpose(0, 1).flatten(0, 1) for z in (query, key))
        if self.how == "stacked slices":
            query, key = (torch.cat(torch.chunk(z.transpose(1, 2).flatten(2), h, 2)) for z in (query, key))
        if self.how == "heads third":
            query, key = query.transpose(1, 2), key.transpose(1, 2)
            probabilities = torch.einsum("bihd,bjhd->bihj", query, key).softmax(-1)
            return torch.einsum("bihj,bjhd->bihd", probabilities, key)
        if self.how == "grouped":
            query, key = query.unflatten(1, (h // 2, 2)), key[:, ::2]
            return torch.einsum("bkgqd,bkjd->bkgqj", query, key).softmax(-1) @ key[:, :, None]
        if self.how == "shared keys":
            return (query.flatten(1, 2) @ key[:, 0].mT).softmax(-1) @ key[:, 0]
        if self.how.startswith("kernel"):
            if self.how == "kernel, merged":
                query, key = query.flatten(0, 1), key.flatten(0, 1)
            return F.scaled_dot_product_attention(query, key, key, scale=1.0)
        if self.how == "products one by one, heads first":
            pairs = zip(query.unbind(1), key.unbind(1), strict=True)
            return torch.cat([one @ other.mT for one, other in pairs]).softmax(-1) @ key.transpose(
                0, 1
            ).flatten(0, 1)
        scores = query @ key.mT
        if self.how == "flat":
            return scores.flatten(0, 2).softmax(-1).reshape(scores.shape) @ key
        if self.how == "halves":
            p = scores.softmax(-1)
            return torch.cat([p[:, : h // 2] @ key[:, : h // 2], p[:, h // 2 :] @ key[:, h // 2 :]], 1)
        if self.how == "one by one":
            flat = scores.flatten(0, 1).contiguous()
            for number in range(len(flat)):
                flat[number] = flat[number].softmax(-1)
            return flat @ key.flatten(0, 1)
        if self.how == "some by some":
            pairs = zip(scores.flatten(0, 1).split(2), key.flatten(0, 1).split(2), strict=True)
            return torch.cat([one.softmax(-1) @ other for one, other in pairs])
        return scores.softmax(-1) @ key

    def expected(self, x: Tensor) -> list[float]:
        query, key = (z.detach().double() for z in self.scores(x, x))
        if self.how == "grouped":
            key = key[:, ::2].repeat_interleave(2, 1)
        if self.how == "shared keys":
            key = key[:, :1]
        values: list[float] = entropies(query @ key.mT).mean((0, 2)).tolist()
        return values


LAYOUTS = [
    "plain", "merged", "merged, heads first", "heads first", "stacked slices", "heads third", "grouped",
    "shared keys", "kernel, merged", "kernel, heads first", "flat", "halves", "one by one", "some by some",
    "products one by one, heads first",
]  # fmt: skip


@pytest.mark.parametrize("how", LAYOUTS)
@FEW
@given(
    name=names,
    batch=st.integers(1, 4),
    length=st.integers(2, 7),
    pairs=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_heads_are_told_by_the_run(
    how: str, name: str, batch: int, length: int, pairs: int, seed: int
) -> None:
    assert name not in SOURCE
    torch.manual_seed(seed)
    model, x = Own(2 * pairs, 3, how, name), torch.randn(batch, length, 6 * pairs)
    assert heads_of(seen(model, x)) == pytest.approx(model.expected(x), abs=2e-4)


@FEW
@given(
    batch=st.integers(1, 3), rows=st.integers(2, 4), columns=st.integers(2, 4), heads=st.integers(2, 3),
    size=st.integers(2, 3), across=st.booleans(), learned=st.booleans(),
)  # fmt: skip
def test_heads_of_pictures_with_their_features_last(
    batch: int, rows: int, columns: int, heads: int, size: int, across: bool, learned: bool
) -> None:
    """Attention along the rows or the columns of (batch, rows, columns, features)."""
    torch.manual_seed(rows)
    project = nn.Linear(heads * size, heads * size) if learned else nn.Identity()

    def parts(x: Tensor) -> Tensor:
        y: Tensor = project(x).unflatten(-1, (heads, size))
        return y.permute(0, 2, 3, 1, 4) if across else y.permute(0, 1, 3, 2, 4)

    class Axial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = project

        def forward(self, x: Tensor) -> Tensor:
            y = parts(x)
            return (y @ y.mT).softmax(-1) @ y

    x = torch.randn(batch, rows, columns, heads * size)
    y = parts(x).detach().double()
    expected = entropies(y @ y.mT).mean((0, 1, 3)).tolist()
    assert heads_of(seen(Axial(), x)) == pytest.approx(expected, abs=2e-4)


def test_slices_that_mix_the_heads_of_two_samples_are_refused() -> None:
    class Ragged(Own):
        def forward(self, x: Tensor) -> Tensor:
            query, key = (z.flatten(0, 1) for z in self.scores(x, x))
            pairs = zip((query @ key.mT).split(3), key.split(3), strict=True)
            return torch.cat([one.softmax(-1) @ other for one, other in pairs])

    with pytest.raises(InputError, match=r"(cut batch and heads|Cut the heads) evenly"):
        seen(Ragged(4, 3, "ragged"), torch.randn(3, 5, 12))


class Given(nn.Module):
    """A model that is given padding by keyword, of any name and at any depth."""

    def __init__(self, name: str, kind: str, how: str) -> None:
        super().__init__()
        self.inner, self.name, self.kind, self.how = Own(2, 4, "plain"), name, kind, how

    def forward(self, x: Tensor, y: Tensor | None = None, **given: Any) -> Tensor:
        held = given[self.name]
        held = held[self.name] if isinstance(held, dict) else held
        tokens = x if y is None else y
        place = torch.arange(tokens.shape[1])
        keep = place < held[:, None] if self.kind == "lengths" else held == (self.kind != "padding")
        query, key = self.inner.scores(x, tokens)
        keep = keep[:, None, None]
        if self.how == "kernel":
            return F.scaled_dot_product_attention(query, key, key, attn_mask=keep)
        return (query @ key.mT).masked_fill(~keep, torch.finfo(x.dtype).min).softmax(-1) @ key


@FEW
@given(
    name=names,
    kind=st.sampled_from(["tokens", "padding", "lengths"]),
    how=st.sampled_from(["kernel", "softmax"]),
    nested=st.booleans(),
    integer=st.booleans(),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    queries=st.sampled_from([None, 3, 6]),
)
def test_padding_is_told_by_what_nobody_sees(
    name: str, kind: str, how: str, nested: bool, integer: bool, lengths: list[int], queries: int | None
) -> None:
    assert name not in SOURCE
    torch.manual_seed(len(lengths))
    sizes, batch = torch.tensor(lengths), len(lengths)
    keep = torch.arange(6) < sizes[:, None]
    mask: Tensor = {"tokens": keep, "padding": ~keep, "lengths": sizes}[kind]
    mask = mask.long() if integer else mask
    model, x = Given(name, kind, how), torch.randn(batch, 6, 8)
    given = {name: {name: mask} if nested else mask}
    if queries is None:
        table = seen(model, x, **given)
        assert set(table["count"]) == {sum(lengths)}
        query, key = (z.detach().double() for z in model.inner.scores(x, x))
        scores = (query @ key.mT * (0.5 if how == "kernel" else 1.0)).masked_fill(
            ~keep[:, None, None], -torch.inf
        )
        rows = entropies(scores).transpose(0, 1)[:, keep]
        assert table["value"].tolist() == pytest.approx(rows.mean(1).tolist(), abs=2e-4)
    else:  # other tokens ask: the mask says nothing of them
        assert set(seen(model, torch.randn(batch, queries, 8), x, **given)["count"]) == {batch * queries}


@FEW
@given(
    name=names,
    kind=st.sampled_from(["tokens", "padding", "lengths", "nothing"]),
    kernel=st.booleans(),
    left=st.booleans(),
    causal=st.booleans(),
    lengths=st.lists(st.integers(2, 5), min_size=2, max_size=4),
)
def test_padding_that_sees_itself_is_padding_where_something_given_tells_it(
    name: str, kind: str, kernel: bool, left: bool, causal: bool, lengths: list[int]
) -> None:
    """As masks are written that leave no row empty; without such a word it may be a text of one token."""
    assert name not in SOURCE
    assume(min(lengths) < 5)
    sizes = torch.tensor(lengths)
    keep = torch.arange(5) < sizes[:, None]
    keep = keep.flip(1) if left else keep

    class Ajar(Own):
        def forward(self, x: Tensor, pairs: Tensor, **given: Any) -> Tensor:
            query, key = self.scores(x, x)
            if kernel:
                return F.scaled_dot_product_attention(query, key, key, attn_mask=pairs, scale=1.0)
            return (query @ key.mT).masked_fill(~pairs, -1e9).softmax(-1) @ key

    pairs = (keep[:, None, :, None] & keep[:, None, None]) | torch.eye(5).bool()
    pairs = pairs & torch.ones(5, 5).tril().bool() if causal else pairs
    given = {"tokens": keep, "padding": (~keep).long(), "lengths": sizes, "nothing": None}[kind]
    table = seen(Ajar(2, 4, ""), torch.randn(len(lengths), 5, 8), pairs, **{name: {name: [given]}})
    assert set(table["count"]) == {5 * len(lengths) if kind == "nothing" else sum(lengths)}


def test_a_token_that_others_see_and_a_mask_of_the_diagonal_are_no_padding() -> None:
    class Strict(Own):
        def forward(self, x: Tensor) -> Tensor:
            query, key = self.scores(x, x)
            return (query @ key.mT).masked_fill(torch.ones(5, 5).triu() > 0, -torch.inf).softmax(
                -1
            ).nan_to_num() @ key

    assert set(seen(Strict(2, 4, "strict"), torch.randn(3, 5, 8))["count"]) == {3 * 4}


@FEW
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=3), memory=st.integers(4, 7))
def test_padded_targets_do_not_ask_the_memory(lengths: list[int], memory: int) -> None:
    pad = torch.arange(5) >= torch.tensor(lengths)[:, None]
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 8, batch_first=True), 2).eval()
    given = (torch.randn(len(lengths), 5, 8), torch.randn(len(lengths), memory, 8))
    assert set(seen(decoder, *given, tgt_key_padding_mask=pad)["count"]) == {sum(lengths)}


@FEW
@given(
    low=st.sampled_from([-1e4, -4e4, -1e6, -1e8, -1e9, -torch.inf, None]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_row_of_one_number_is_hidden_on_every_route_or_on_none(
    low: float | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    mask = torch.zeros(2, 1, 6, 6, dtype=dtype)
    mask[0, 0, 2] = torch.finfo(dtype).min if low is None else low
    query = torch.randn(2, 2, 6, 8, dtype=dtype)

    class Route(nn.Module):
        def __init__(self, kernel: bool) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, query: Tensor, mask: Tensor) -> Tensor:
            if self.kernel:
                return F.scaled_dot_product_attention(query, query, query, attn_mask=mask)
            return (query @ query.mT / 8**0.5 + mask).softmax(-1) @ query

    one, other = (
        (seen(Route(kernel), query, mask) for kernel in (False, True))
        if low != -torch.inf
        else (joma_table(Route(kernel), query, mask) for kernel in (False, True))
    )
    assert one["count"].tolist() == other["count"].tolist()
    assert one["value"].tolist() == pytest.approx(other["value"].tolist(), abs=1e-3)


def joma_table(model: nn.Module, *given: Tensor) -> pandas.DataFrame:
    """Where a row is NaN, outputs are compared by nobody."""
    with torch.no_grad(), joma.watch(model) as watched:
        model(*given)
    return watched.table()


@FEW
@given(batch=st.integers(1, 2), groups=st.integers(1, 2), causal=st.booleans())
def test_flex_attention_called_by_hand(batch: int, groups: int, causal: bool) -> None:
    torch.manual_seed(batch)
    query, key = torch.randn(batch, 2 * groups, 16, 8), torch.randn(batch, 2, 16, 8)
    bias = torch.randn(2 * groups, 16, 16)

    class Flex(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            block = create_block_mask(lambda b, h, i, j: i >= j, batch, 2 * groups, 16, 16, device="cpu")
            out: Tensor = flex_attention(
                query, key, key, score_mod=lambda s, b, h, i, j: s + bias[h, i, j],
                block_mask=block if causal else None, enable_gqa=True,
            )  # fmt: skip
            return out

    scores = query.double() @ key.double().repeat_interleave(groups, 1).mT / 8**0.5 + bias
    if causal:
        scores = scores.masked_fill(torch.ones(16, 16).triu(1) > 0, -torch.inf)
    assume(bool(scores.isfinite().any()))
    torch._dynamo.reset()  # flex_attention compiles itself, within the watch
    assert seen(Flex(), query, key)["value"].tolist() == pytest.approx(
        entropies(scores).mean((0, 2)).tolist(), abs=1e-4
    )

"""attention_entropy against the dense formula in float64, in every form that attention takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import joma
from joma.core.errors import InputError, UnfinishedError
from joma.measures.attention import compiled, flash, kernels
from joma.measures.attention import entropy as module
from joma.measures.attention.visible_keys import VisibleKeys, pieces, visible_keys

EVERY = (
    "entropy", "normalised_entropy", "entropy_over_log_length", "effective_support", "renyi_2", "renyi_0.5",
    "min_entropy", "largest_probability", "largest_logit", "log_normaliser", "first_key_mass", "self_mass",
    "previous_key_mass", "mean_distance", "distance_spread", "entropy_among_keys",
)  # fmt: skip
COMPILED = tuple(s for s in EVERY if not s.startswith("renyi") and s != "distance_spread")
FLASH = tuple(
    s
    for s in EVERY
    if s not in ("min_entropy", "largest_probability", "largest_logit", "distance_spread")
    and not s.startswith("renyi")
)


def qk(batch: int, heads: int, groups: int, rows: int, keys: int, width: int = 16, seed: int = 0) -> Any:
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, heads, rows, width, generator=random) * 3
    key = torch.randn(batch, groups, keys, width, generator=random)
    return query, key + 2 * torch.randn(batch, groups, 1, width, generator=random)


def dense(
    query: Tensor,
    key: Tensor,
    keep: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    first: int | None = None,
) -> dict[str, Tensor]:
    """Every statistic from the full matrix in float64, by its definition."""
    heads, rows, keys = query.shape[1], query.shape[2], key.shape[2]
    repeated = key.double().repeat_interleave(heads // key.shape[1], 1)
    scores = query.double() @ repeated.mT * (scale or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    keep = torch.ones(1, 1, 1, 1, dtype=torch.bool) if keep is None else keep
    keep = keep.expand(scores.shape)
    scores = scores.masked_fill(~keep, -math.inf)
    sink = torch.full((heads,), -math.inf) if sinks is None else sinks
    column = sink.double()[:, None, None].expand(*scores.shape[:-1], 1)
    outcomes = torch.cat([scores, column], -1).softmax(-1)
    p, n = outcomes[..., :-1], keep.sum(-1).double() + (sinks is not None)
    among = scores.softmax(-1)
    place = torch.arange(keys)
    start = keys - rows if first is None else first
    own = torch.arange(rows) + start
    seen_by_any = keep.any(2).any(1)
    begin = seen_by_any.int().argmax(-1)
    length = keys - begin - seen_by_any.flip(-1).int().argmax(-1)
    distance = (own[:, None] - place).double()
    average = (among * distance).sum(-1)

    def entropy(q: Tensor) -> Tensor:
        return -torch.special.xlogy(q, q).sum(-1)

    def at(column: Tensor) -> Tensor:
        index = column.clamp(0, keys - 1).expand(p.shape[0], rows)[:, None, :, None]
        mass = p.gather(-1, index.expand(-1, heads, -1, 1)).squeeze(-1)
        return mass.masked_fill(~((column >= begin[:, None]) & (column < keys))[:, None], math.nan)

    values = {
        "entropy": entropy(outcomes),
        "normalised_entropy": (entropy(outcomes) / n.log()).masked_fill(n == 1, math.nan),
        "entropy_over_log_length": entropy(outcomes) / length.double().log()[:, None, None],
        "effective_support": entropy(outcomes).exp(),
        "renyi_2": -outcomes.square().sum(-1).log(),
        "renyi_0.5": 2 * outcomes.sqrt().sum(-1).log(),
        "min_entropy": -p.amax(-1).log(),
        "largest_probability": p.amax(-1),
        "largest_logit": scores.amax(-1),
        "log_normaliser": torch.cat([scores, column], -1).logsumexp(-1),
        "first_key_mass": at(begin[:, None].expand(-1, rows)),
        "self_mass": at(own[None]),
        "previous_key_mass": at(own[None] - 1),
        "mean_distance": average,
        "distance_spread": (among * (distance - average[..., None]).square()).sum(-1).sqrt(),
        "sink_mass": outcomes[..., -1],
        "entropy_among_keys": entropy(among),
    }
    return {name: value.masked_fill(~keep.any(-1), math.nan) for name, value in values.items()}


def agree(found: joma.AttentionEntropy, truth: dict[str, Tensor]) -> None:
    seen = ~truth["entropy"].isnan()
    assert bool(seen.any())
    assert torch.equal(found.entropy.isnan(), ~seen)
    wrong = (found.entropy.double() - truth["entropy"]).abs()[seen]
    assert float(wrong.max()) <= 5e-5
    assert bool((wrong <= found.error.double()[seen]).all())
    for name, value in found.values.items():
        # Float32 distances of hundreds of keys have no 1e-4 absolute; relative to their size they do.
        torch.testing.assert_close(
            value.double(),
            truth[name],
            rtol=3e-4,
            atol=3e-4,
            equal_nan=True,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def places(rows: int, keys: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)


def forms(size: int) -> dict[str, tuple[dict[str, Any], Tensor | None]]:
    """name -> (arguments, what they keep), for a batch of 3 with 6 heads."""
    i, j = places(size, size)
    causal = (j <= i)[None, None]
    left = torch.tensor([0, size // 3, size - 5])[:, None, None, None]
    lengths = torch.tensor([size, 2 * size // 3, 4])[:, None, None, None]
    packed = torch.bucketize(torch.arange(size), torch.tensor([9, size // 2, size // 2 + 80]))
    scattered = torch.rand(3, 1, size, size, generator=torch.Generator().manual_seed(5)) < 0.3
    by_head = torch.rand(1, 6, size, size, generator=torch.Generator().manual_seed(6)) < 0.3
    least = torch.finfo(torch.float32).min
    return {
        "full": ({}, None),
        "causal": ({"causal": True}, causal),
        "window": ({"causal": True, "window": 33}, causal & (j > i - 33)),
        "both sides": ({"window": (20, 7)}, ((j >= i - 20) & (j <= i + 7))[None, None]),
        "left padded": ({"causal": True, "mask": j >= left}, causal & (j >= left)),
        "right padded": ({"mask": j < lengths}, (j < lengths).expand(3, 1, size, size)),
        "mask for all": ({"mask": causal & (j >= left)}, causal & (j >= left)),
        "finfo.min": ({"mask": (~(causal & (j >= left))).float() * least}, causal & (j >= left)),
        "packed": ({"mask": causal & (packed == packed[:, None])}, causal & (packed == packed[:, None])),
        "scattered": ({"mask": scattered, "causal": True}, scattered & causal),
        "by head": ({"mask": by_head}, by_head),
    }


@pytest.mark.parametrize("name", forms(9))
@pytest.mark.parametrize(
    ("size", "route"), [(60, "dense"), (400, "compiled"), (400, "flash"), (400, "blocked")]
)
def test_every_mask_equals_the_dense_formula(
    name: str, size: int, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, keep = forms(size)[name]
    if route == "compiled":
        monkeypatch.setattr(compiled, "FEWEST", 0)
        if name in ("scattered", "by head"):  # no intervals
            route = "blocked"
    if route == "flash":
        monkeypatch.setattr(module, "compiled_moments", lambda *_: None)
    query, key = qk(3, 6, 2, size, size)
    statistics = {"compiled": COMPILED, "flash": FLASH}.get(route, EVERY)
    found = joma.attention_entropy(query, key, statistics=statistics, block_size=1 << 17, **arguments)
    assert found.route == route
    truth = dense(query, key, keep)
    agree(found, truth)
    counts = torch.full((3, 6, size), size) if keep is None else keep.sum(-1).expand(3, 6, size)
    assert torch.equal(found.visible, counts)


def test_a_window_shows_one_more_key_per_row_until_it_is_full() -> None:
    query, key = qk(1, 1, 1, 500, 500)
    found = joma.attention_entropy(query, key, causal=True, window=4)
    assert found.visible[0, 0].tolist() == [1, 2, 3] + [4] * 497
    assert float(found.entropy.max()) <= math.log(4) + 1e-6
    assert float(found.entropy[0, 0, 0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("size", [60, 400])
@pytest.mark.parametrize(
    ("arguments", "scale"),
    [
        ({"softcap": 5.0}, None),
        ({"scale": 1.0}, 1.0),
        ({"bias": "alibi"}, None),
        ({"bias": "alibi", "softcap": 7.0}, None),
        ({"mask": "alibi"}, None),
    ],
)
def test_soft_caps_and_biases(size: int, arguments: dict[str, Any], scale: float | None) -> None:
    i, j = places(size, size)
    slopes = 2.0 ** -torch.arange(1, 7)[:, None, None]
    bias = (slopes * (j - i).float())[None]
    given = {name: bias if value == "alibi" else value for name, value in arguments.items()}
    query, key = qk(2, 6, 3, size, size)
    found = joma.attention_entropy(query, key, causal=True, statistics=EVERY, **given)
    truth = dense(
        query, key, (j <= i)[None, None], scale=scale, softcap=given.get("softcap"),
        bias=bias if "alibi" in arguments.values() else None,
    )  # fmt: skip
    agree(found, truth)


@pytest.mark.parametrize("size", [60, 400])
def test_sinks_are_one_more_outcome(size: int) -> None:
    i, j = places(size, size)
    query, key = qk(2, 6, 2, size, size)
    sinks = torch.tensor([-30.0, -2.0, 0.0, 3.0, 8.0, 40.0])
    truth = dense(query, key, (j <= i)[None, None], sinks=sinks)
    for statistics in (EVERY, FLASH):
        found = joma.attention_entropy(
            query, key, causal=True, sinks=sinks, statistics=(*statistics, "sink_mass")
        )
        agree(found, truth)


@pytest.mark.parametrize("block_size", [1, 40, 5000, 1 << 14])
@pytest.mark.parametrize("name", ["causal", "left padded", "window", "by head"])
def test_blocks_of_any_size_join_to_the_same(name: str, block_size: int) -> None:
    size = 30 if block_size < 100 else 300
    arguments, keep = forms(size)[name]
    query, key = qk(3, 6, 2, size, size)
    found = joma.attention_entropy(query, key, statistics=EVERY, block_size=block_size, **arguments)
    agree(found, dense(query, key, keep))


def test_a_text_of_several_tiles_of_keys() -> None:
    query, key = qk(1, 2, 1, 1300, 1300)
    key[:, :, 0] *= 20  # a sink: the first tile's scores are far above those of the others
    i, j = places(1300, 1300)
    agree(joma.attention_entropy(query, key, causal=True, statistics=EVERY), dense(query, key, j <= i))


def test_decoding_reads_one_row_against_a_long_cache() -> None:
    query, key = qk(2, 6, 2, 1, 3000)
    truth = dense(query, key)
    agree(joma.attention_entropy(query, key, causal=True, statistics=EVERY), truth)
    chunk, cache = qk(1, 2, 1, 100, 1500)
    i, j = places(100, 1500)
    agree(joma.attention_entropy(chunk, cache, causal=True, statistics=FLASH), dense(chunk, cache, j <= i))
    # PyTorch's is_causal counts from the top left.
    top_left = joma.attention_entropy(chunk, cache, causal=True, first_position=0)
    assert top_left.visible[0, 0].tolist() == list(range(1, 101))
    agree(top_left, dense(chunk, cache, j <= torch.arange(100)[:, None]))


def test_layouts_and_dimensions() -> None:
    """Strides, the last one too, and missing dimensions change nothing."""
    query, key = qk(2, 4, 2, 350, 350)
    plain = joma.attention_entropy(query, key, causal=True).entropy
    transposed = query.transpose(1, 2).contiguous().transpose(1, 2)
    spread = torch.zeros(2, 2, 350, 32)
    spread[..., ::2] = key
    columns = key.mT.contiguous().mT
    for q, k in ((transposed, key), (query, spread[..., ::2]), (query, columns)):
        # Other strides add up in another order.
        found = joma.attention_entropy(q, k, causal=True).entropy
        torch.testing.assert_close(found, plain, rtol=1e-6, atol=2e-5)
    torch.testing.assert_close(joma.attention_entropy(query[0], key[0], causal=True).entropy, plain[0])
    torch.testing.assert_close(
        joma.attention_entropy(query[1, 0], key[1, 0], causal=True).entropy, plain[1, 0]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [60, 400])
@pytest.mark.parametrize("spread", [1, 10, 1000])
def test_precision_at_large_logits(dtype: torch.dtype, size: int, spread: float) -> None:
    query, key = qk(1, 2, 1, size, size, width=64)
    query = (query / 3 * spread).to(dtype)
    key = (key + 5).to(dtype)
    i, j = places(size, size)
    found = joma.attention_entropy(query, key, causal=True)
    agree(found, dense(query, key, j <= i))
    assert found.entropy.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(-2, 3.5), st.floats(-2, 2.5), st.sampled_from([1, 4, 16, 64, 128]))
@example(22433, 0.625, 2.0, 4)
@example(0, 3.0, 2.5, 16)
def test_the_estimate_is_never_below_the_error(seed: int, spread: float, offset: float, width: int) -> None:
    """40 examples of 2 x 2 x 68 rows in each of three forms, 10,880 and more: all magnitudes of logits,
    common offsets of the keys, widths; without the second computation in float64."""
    random = torch.Generator().manual_seed(seed)
    rows, keys = 68, int(torch.randint(2, 600, (1,), generator=random))
    query = torch.randn(2, 2, rows, width, generator=random) * 10**spread
    key = torch.randn(2, 1, keys, width, generator=random)
    key += 10**offset * torch.randn(2, 1, 1, width, generator=random)
    key[:, :, 0] *= 10 ** float(torch.rand(1, generator=random) * 2)
    given = module.check_arguments(
        query, key, None, False, None, None, None, None, None, None, ("entropy",), None, 0, None, 1 << 16
    )
    scores = given.scores.centre_keys(torch.float32)
    truth = dense(query, key)["entropy"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "FEWEST", 0)
        own = module.compiled_moments(scores, module.wanted_moments(()))
    for moments in (
        own,
        module.flash_moments(scores, module.wanted_moments(())),
        module.blocked_moments(scores, module.wanted_moments(()), 1 << 16),
    ):
        assert moments is not None
        wrong = (moments.entropy.double() - truth).abs()
        worst = float((wrong / moments.error.double()).max())
        assert worst <= 1.0, f"{worst:.2f} times the estimate"


def test_rows_beyond_tolerance_are_done_again() -> None:
    query, key = qk(2, 4, 2, 400, 400)
    key[:, :, 1::2] = key[:, :, ::2]  # of two alike, neither has a row to itself, where H would be sure
    query[0, 1, 100:130] *= 300
    query[1, 3, 7] *= 1000
    first = joma.attention_entropy(query, key, causal=True, tolerance=math.inf)
    again = joma.attention_entropy(query, key, causal=True)
    assert first.redone == 0
    assert 25 <= again.redone <= 31  # a row that ends between two alike may have one for itself
    assert float(first.error.max()) > 5e-5 >= float(again.error.max())
    i, j = places(400, 400)
    agree(again, dense(query, key, j <= i))


def test_padding_may_hold_anything() -> None:
    query, key = qk(2, 2, 2, 400, 400)
    clean = joma.attention_entropy(query, key, mask=torch.arange(400) >= 50)
    query[:, :, :50] = math.nan
    key[:, :, :50] = math.nan
    mask = (torch.arange(400) >= 50)[:, None] & (torch.arange(400) >= 50)
    found = joma.attention_entropy(query, key, mask=mask)
    assert torch.equal(found.entropy[:, :, 50:], clean.entropy[:, :, 50:])
    assert bool(found.entropy[:, :, :50].isnan().all())
    nothing = joma.attention_entropy(query, key, mask=torch.zeros(400, 400, dtype=torch.bool))
    assert bool(nothing.entropy.isnan().all())


def test_a_sample_of_rows_estimates_the_mean() -> None:
    query, key = qk(2, 4, 2, 1600, 1600)
    every = joma.attention_entropy(query, key, causal=True, statistics=FLASH)
    mean, error = every.mean()
    assert float(error.abs().max()) == 0.0
    torch.testing.assert_close(mean, every.entropy.double().mean(-1))
    deviations = []
    for seed in range(12):
        part = joma.attention_entropy(query, key, causal=True, rows=1 / 8, seed=seed, statistics=FLASH)
        assert part.entropy.shape == (2, 4, 200)
        assert int(part.strata.sum()) == 1600
        for name in FLASH:
            torch.testing.assert_close(
                part[name], every[name][:, :, part.rows], rtol=3e-4, atol=3e-4, equal_nan=True
            )
        estimate, deviation = part.mean()
        deviations.append((estimate - mean) / deviation)
    # 96 standard scores: their root mean square is 1 within sampling error where the error is right.
    assert 0.6 < float(torch.stack(deviations).square().mean().sqrt()) < 1.4


def test_chosen_rows() -> None:
    query, key = qk(1, 2, 2, 500, 500)
    every = joma.attention_entropy(query, key, causal=True)
    part = joma.attention_entropy(query, key, causal=True, rows=[3, 499, 20])
    torch.testing.assert_close(part.entropy, every.entropy[:, :, [3, 499, 20]])
    assert part.rows.tolist() == [3, 499, 20]


def test_an_issue_reported_elsewhere_as_a_fixture() -> None:
    """128 keys of width 256: nearly one-hot at scale 1, nearly uniform at 1/16; 7 bits at most."""
    random = np.random.default_rng(0)
    query, key = (torch.tensor(random.normal(size=(1, 1, 128, 256)), dtype=torch.float32) for _ in range(2))
    bits = [
        float(joma.attention_entropy(query, key, scale=s).entropy.mean()) / math.log(2) for s in (1, 1 / 16)
    ]
    assert bits[0] < 0.7
    assert 6.1 < bits[1] < 6.5


interval_rows = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=9)


@given(
    st.lists(
        st.tuples(st.sampled_from("cfwejp"), st.integers(1, 150), st.integers(0, 40)), min_size=1, max_size=6
    )
)
def test_pieces_cover_each_row_once_with_its_keys(parts: list[tuple[str, int, int]]) -> None:
    first: list[int] = []
    stop: list[int] = []
    for kind, length, low in parts:
        for row in range(length):
            begin = low + row if kind in "wj" else low
            end = {
                "c": low + row + 1,
                "f": low + 30,
                "w": low + row + 20,
                "e": low,
                "j": begin,
                "p": low + row + 7,
            }
            first.append(begin)
            stop.append(end[kind])
    covered = [0] * len(first)
    for piece in pieces(torch.tensor(first), torch.tensor(stop)):
        for row in range(piece.rows.start, piece.rows.stop):
            covered[row] += 1
            assert first[row] < stop[row]
            low, high = piece.keys.start, piece.keys.stop
            if piece.kind == "causal":
                high = low + row - piece.rows.start + 1
                low = piece.before.start if piece.before else low
            if piece.kind == "masked":
                assert low <= first[row] < stop[row] <= high
            else:
                assert (low, high) == (first[row], stop[row])
    assert covered == [int(a < b) for a, b in zip(first, stop, strict=True)]


def test_masks_that_are_intervals_are_kept_as_such() -> None:
    i, j = places(200, 200)
    positions = torch.arange(200)
    seen = visible_keys(positions, 200, causal=False, window=None, mask=((j <= i) & (j > i - 30))[None, None])
    same = visible_keys(positions, 200, causal=True, window=(29, 0), mask=None)
    assert seen.mask is None
    assert torch.equal(seen.first, same.first)
    assert torch.equal(seen.stop, same.stop)
    assert next(p.kind for p in pieces(*_intervals(same))) == "masked"
    causal = visible_keys(positions, 200, causal=False, window=None, mask=(j <= i)[None, None])
    assert [p.kind for p in pieces(*_intervals(causal))] == ["causal"]


def _intervals(seen: VisibleKeys) -> tuple[Tensor, Tensor]:
    return seen.first[0], seen.stop[0]


def test_the_input_is_left_alone() -> None:
    query, key = (x.requires_grad_() for x in qk(1, 2, 2, 400, 400))
    before = query.detach().clone(), key.detach().clone()
    found = joma.attention_entropy(query, key, causal=True)
    assert not found.entropy.requires_grad
    assert torch.equal(query.detach(), before[0])
    assert torch.equal(key.detach(), before[1])


BAD: list[tuple[dict[str, Any], str]] = [
    ({"statistics": ("entropi",)}, "did you mean 'entropy'"),
    ({"statistics": ("renyi_1",)}, "unknown statistic 'renyi_1'"),
    ({"statistics": ("sink_mass",)}, "needs sinks"),
    ({"sinks": torch.zeros(3)}, "for each of 4 heads"),
    ({"mask": torch.ones(2, 10, dtype=torch.bool)}, r"mask\[:, None, None, :\]"),
    ({"mask": torch.ones(10, 10, dtype=torch.int64)}, "int64"),
    ({"bias": torch.ones(10, 10, dtype=torch.bool)}, "boolean"),
    ({"bias": torch.full((10, 10), math.nan)}, r"NaN or \+inf"),
    ({"window": 3}, "says no side"),
    ({"window": 0, "causal": True}, "positive number"),
    ({"softcap": -1.0}, "softcap = -1.0"),
    ({"scale": math.nan}, "scale = nan"),
    ({"rows": 1.5}, "not a share"),
    ({"rows": [10]}, "indices from 0 to 9"),
    ({"query": torch.zeros(2, 4, 10, 9)}, "width 9"),
    ({"query": torch.zeros(2, 3, 10, 8)}, "3 query heads are no multiple of 2"),
    ({"query": torch.zeros(3, 4, 10, 8)}, "batch 3"),
    ({"query": torch.zeros(4, 10, 8)}, "must both be"),
    ({"query": torch.zeros(2, 4, 0, 8)}, "is empty"),
    ({"query": torch.zeros(2, 4, 10, 8, dtype=torch.int32)}, "int32"),
    ({"query": torch.zeros(2, 4, 11, 8), "causal": True}, "give first_position"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_says_what_is_wrong(arguments: dict[str, Any], message: str) -> None:
    query, key = qk(2, 4, 2, 10, 10, width=8)
    query = arguments.pop("query", query)
    with pytest.raises(InputError, match=message):
        joma.attention_entropy(query, key, **arguments)


@pytest.mark.parametrize("size", [20, 400])
def test_scores_that_are_not_finite_are_named(size: int) -> None:
    query, key = qk(2, 4, 2, size, size)
    query[1, 2, 11, 3] = math.inf
    with pytest.raises(InputError, match=r"batch 1, head 2, row 11 .*query there is not finite"):
        joma.attention_entropy(query, key, causal=True)
    query, key = qk(2, 4, 2, size, size)
    key[0, 1, 7] = math.nan
    with pytest.raises(InputError, match=r"batch 0, head 2, row .*key 7 is not finite"):
        joma.attention_entropy(query, key, causal=True)


def test_a_kernel_that_is_off_by_more_than_it_may_be_serves_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row it makes a negative entropy; the others, which may be wrong too, are computed by blocks."""

    def wrong(*given: Any) -> tuple[Tensor, Tensor]:
        output, lse = kernels.flash_cpu(*given)
        lse[..., 3] -= 10
        lse[..., 5] += 0.5
        return output, lse

    monkeypatch.setattr(flash, "kernel_for", lambda *_: wrong)
    query, key = qk(1, 2, 2, 80, 90)
    truth = torch.special.entr((query.double() @ key.double().mT / 4).softmax(-1)).sum(-1)
    for tolerance in (None, math.inf):
        found = joma.attention_entropy(query, key, tolerance=tolerance)
        assert found.route == "blocked"
        assert bool(((found.entropy.double() - truth).abs() <= found.error.double()).all())


def test_products_too_large_for_float32_are_done_in_float64() -> None:
    query, key = qk(1, 2, 2, 400, 400)
    found = joma.attention_entropy(query * 1e20, key * 1e20)
    assert found.redone == 800
    # One-hot in truth; the estimate says that float64 cannot tell either.
    assert bool((found.entropy <= found.error).all())


def test_out_of_memory_names_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(module, "blocked_moments", full)
    query, key = qk(1, 2, 2, 10, 10)
    with pytest.raises(UnfinishedError, match="lower block_size"):
        joma.attention_entropy(query, key)

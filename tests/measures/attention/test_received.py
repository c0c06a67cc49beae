"""received_attention against the definition in float64, in every form that attention takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import joma
from joma.core.errors import InputError
from joma.measures.attention import compiled as attention_compiled
from joma.measures.attention import torch_threads
from joma.measures.attention.received import attention as module
from joma.measures.attention.received import compiled as received_compiled
from joma.measures.attention.received import compiled_kernel

NAMES = ("mass", "mean", "maximum", "value_mass", "removal_effect")


@pytest.fixture(params=["compiled", "blocks"], autouse=True)
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test on both ways, whatever the text's length."""
    monkeypatch.setattr(attention_compiled, "FEWEST", 0 if request.param == "compiled" else math.inf)
    return str(request.param)


def qkv(batch: int, heads: int, groups: int, rows: int, keys: int, seed: int = 0, width: int = 16) -> Any:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    key = normal(batch, groups, keys, width) + 2 * normal(batch, groups, 1, width)
    return normal(batch, heads, rows, width) * 3, key, normal(batch, groups, keys, 8) + 1


def visible(
    rows: int, keys: int, *, causal: bool = False, window: Any = None, first: int | None = None
) -> Tensor:
    own = torch.arange(rows)[:, None] + (keys - rows if first is None else first)
    place = torch.arange(keys)
    keep = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        keep = keep & (place <= own)
    if window is not None:
        before, after = (window - 1, 0) if isinstance(window, int) else window
        keep = keep & (place >= own - before) & (place <= own + after)
    return keep


def brute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor,
    *,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    output_weight: Tensor | None = None,
    scale: float | None = None,
    counted: Tensor | None = None,
) -> dict[str, Tensor]:
    """Everything from the matrix, each removal by another softmax over the keys that are left."""
    batch, heads, _, width = query.shape
    keys, repeat = key.shape[2], heads // key.shape[1]
    k, v = (x.double().repeat_interleave(repeat, 1) for x in (key, value))
    scores = query.double() @ k.mT * (width**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    keep = keep.expand(scores.shape)
    sink = torch.full((heads,), -math.inf) if sinks is None else sinks
    column = sink.double()[:, None, None].expand(*scores.shape[:-1], 1)

    def outcome(seen: Tensor) -> Tensor:
        every = torch.cat([scores.masked_fill(~seen, -math.inf), column], -1)
        return every.softmax(-1)[..., :-1].nan_to_num(0.0)

    p = outcome(keep)
    counts = keep.any(-1)
    if counted is not None:
        counts = counts & counted[:, None]
    weight = counts.double()[..., None]
    number = counts.sum(-1).double().clamp_min(1)[..., None]
    removal = torch.zeros(batch, heads, keys, dtype=torch.float64)
    for j in range(keys):
        left = keep.clone()
        left[..., j] = False
        # o = p_j v_j + (1 - p_j) o^(-j), so that the change is p_j (o^(-j) - v_j): nothing cancels.
        change = p[..., j, None] * (outcome(left) @ v - v[..., j, None, :])
        if output_weight is not None:
            by_head = output_weight.double().unflatten(1, (heads, -1))
            change = torch.einsum("bhrw,ohw->bhro", change, by_head)
        some = (keep[..., j] & left.any(-1) & counts).double()
        removal[..., j] = (change.square().sum(-1) * some).sum(-1)
    seen_by = (keep * weight).sum(-2)
    return {
        "mass": (p * weight).sum(-2),
        "mean": (p * weight).sum(-2) / seen_by,
        "maximum": (p * weight).amax(-2),
        "value_mass": ((p * weight).square().sum(-2) / number).sqrt() * v.norm(dim=-1),
        "removal_effect": (removal / number).sqrt(),
    }


def agrees(found: joma.ReceivedAttention, truth: dict[str, Tensor], relative: float = 1e-5) -> None:
    for name in NAMES:
        seen, true = found[name].double(), truth[name]
        torch.testing.assert_close(
            seen, true, rtol=relative, atol=1e-30, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )
        off, bound = (seen - true).abs().nan_to_num(0.0), found.errors[name].double().nan_to_num(0.0)
        assert bool((off <= bound + 1e-300).all()), (name, float((off / bound.clamp_min(1e-300)).max()))


PADDING = torch.arange(40) < torch.tensor([40, 23])[:, None]
LAYOUTS: dict[str, tuple[Any, dict[str, Any], Tensor]] = {
    "full": ((2, 4, 4, 33, 33), {}, visible(33, 33)),
    "causal": ((2, 4, 4, 70, 70), {"causal": True}, visible(70, 70, causal=True)),
    "grouped": ((1, 6, 2, 70, 70), {"causal": True}, visible(70, 70, causal=True)),
    "one key head": ((1, 4, 1, 20, 90), {}, visible(20, 90)),
    "cache": ((1, 4, 2, 5, 60), {"causal": True}, visible(5, 60, causal=True)),
    "offset": (
        (1, 2, 2, 20, 40),
        {"causal": True, "first_position": 3},
        visible(20, 40, causal=True, first=3),
    ),
    "window": ((1, 4, 2, 70, 70), {"causal": True, "window": 9}, visible(70, 70, causal=True, window=9)),
    "both sides": ((1, 2, 2, 70, 70), {"window": (3, 5)}, visible(70, 70, window=(3, 5))),
    "padding": ((2, 4, 2, 40, 40), {"mask": PADDING[:, None, None]}, PADDING[:, None, None]),
    "padded queries": (
        (2, 4, 2, 40, 40),
        {"mask": PADDING[:, None, None] & PADDING[:, None, :, None]},
        PADDING[:, None, None] & PADDING[:, None, :, None],
    ),
    "left padding": (
        (2, 4, 2, 40, 40),
        {"mask": PADDING.flip(-1)[:, None, None], "causal": True},
        PADDING.flip(-1)[:, None, None] & visible(40, 40, causal=True),
    ),
    "one row, one key": ((1, 1, 1, 1, 1), {"causal": True}, visible(1, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layouts_agree_with_the_definition(layout: str, dtype: torch.dtype) -> None:
    shape, arguments, keep = LAYOUTS[layout]
    query, key, value = (x.to(dtype) for x in qkv(*shape))
    output_weight = torch.randn(12, shape[1] * 8, generator=torch.Generator().manual_seed(1))
    for weight in (None, output_weight):
        found = joma.received_attention(query, key, value, output_weight=weight, block_size=999, **arguments)
        agrees(found, brute(query, key, value, keep, output_weight=weight))
    rows = keep.expand(*query.shape[:-1], key.shape[2]).any(-1).sum(-1).double()
    torch.testing.assert_close(found.mass.double().sum(-1), rows, rtol=1e-6, atol=0)


def test_scores_that_are_not_linear_in_the_keys_agree() -> None:
    query, key, value = qkv(2, 4, 2, 50, 50)
    keep = visible(50, 50, causal=True)
    random = torch.Generator().manual_seed(3)
    bias = torch.randn(1, 4, 50, 50, generator=random) * 5
    sinks = torch.tensor([0.0, 5.0, -3.0, 40.0])
    scattered = torch.rand(2, 4, 50, 50, generator=random) < 0.3
    for keywords in ({"softcap": 3.0}, {"bias": bias}, {"sinks": sinks}, {"softcap": 20.0, "bias": bias}):
        found = joma.received_attention(query, key, value, causal=True, **keywords)  # type: ignore[arg-type]
        agrees(found, brute(query, key, value, keep, **keywords))  # type: ignore[arg-type]
    found = joma.received_attention(query, key, value, mask=scattered, scale=-0.4, sinks=sinks)
    agrees(found, brute(query, key, value, scattered, scale=-0.4, sinks=sinks))


@pytest.mark.parametrize("gap", [math.log(1e9), 60.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_key_that_has_its_row_to_itself_is_removed_without_subtraction(
    gap: float, dtype: torch.dtype
) -> None:
    """At p = 1 - 1e-9 and beyond, the difference 1 - p has lost most or all of its digits."""
    query = torch.ones(1, 1, 3, 1, dtype=dtype)
    key = torch.tensor([0.0, gap, -1.0, 0.5], dtype=dtype)[None, None, :, None]
    value = torch.tensor([[1.0, 2.0], [1.0, 3.0], [-2.0, 0.0], [5.0, 1.0]], dtype=dtype)[None, None]
    found = joma.received_attention(query, key, value, scale=1.0)
    agrees(found, brute(query, key, value, visible(3, 4), scale=1.0))
    # The others' outputs differ from the one by numbers of order 1, however little they have.
    assert float(found.removal_effect[0, 0, 1]) > 1


@pytest.mark.parametrize("case", ["a long key", "ties", "equal values", "large logits"])
def test_adversarial_heads_agree(case: str) -> None:
    query, key, value = qkv(1, 4, 2, 60, 60, seed=5)
    if case == "a long key":
        key[:, :, 0] *= 60
    elif case == "ties":
        key[:, :, 1::2] = key[:, :, ::2]
    elif case == "equal values":
        value = value[:, :, :1] + 1e-2 * value
    else:
        query = query * 20
    found = joma.received_attention(query, key, value, causal=True)
    agrees(found, brute(query, key, value, visible(60, 60, causal=True)))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 20), st.sampled_from([1, 2, 3]), st.booleans(),
    st.one_of(st.none(), st.integers(1, 12)), st.floats(0.01, 30), st.booleans(),
)  # fmt: skip
def test_drawn_calls_agree(
    seed: int, rows: int, more: int, group: int, causal: bool, window: int | None, size: float, sinks: bool
) -> None:
    query, key, value = qkv(1, 2 * group, 2, rows, rows + more, seed=seed, width=8)
    query = query * size
    given: dict[str, Any] = {"sinks": torch.arange(2.0 * group)} if sinks else {}
    keep = visible(rows, rows + more, causal=causal, window=window if causal else None)
    found = joma.received_attention(
        query, key, value, causal=causal, window=window if causal else None, **given
    )
    agrees(found, brute(query, key, value, keep, **given))


def test_queries_that_do_not_count_are_left_out_and_rows_can_be_chosen() -> None:
    query, key, value = qkv(2, 4, 2, 40, 40)
    keep = visible(40, 40, causal=True)
    found = joma.received_attention(query, key, value, causal=True, counted=PADDING)
    agrees(found, brute(query, key, value, keep, counted=PADDING))
    assert found.queries[1].tolist() == [23.0] * 4
    some = joma.received_attention(query, key, value, causal=True, rows=[3, 30])
    agrees(some, brute(query[:, :, [3, 30]], key, value, keep[[3, 30]]))
    share = joma.received_attention(query, key, causal=True, rows=0.25)
    torch.testing.assert_close(share.mass.sum(-1), torch.full((2, 4), 40.0))


def test_without_values_and_with_bad_ones_it_says_so() -> None:
    query, key, value = qkv(1, 2, 2, 6, 6)
    found = joma.received_attention(query, key, causal=True)
    for name in ("removal_effect", "value_mass"):
        with pytest.raises(InputError, match="call it with value"):
            getattr(found, name)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"value": value[:, :1]}, "must agree in all but the width"),
        ({"value": value, "output_weight": torch.ones(3, 5)}, "must be"),
        ({"output_weight": torch.ones(3, 16)}, "without value"),
        ({"value": value.clone().fill_(math.nan)}, "NaN or infinite"),
        ({"counted": torch.ones(6)}, "boolean"),
        ({"softcap": -1.0}, "received_attention: softcap"),
    ]
    for keywords, said in cases:
        with pytest.raises(InputError, match=said):
            joma.received_attention(query, key, **keywords)
    with pytest.raises(InputError, match="NaN or infinite"):
        joma.received_attention(query, key.clone().fill_(math.inf))


def key_sums(
    monkeypatch: pytest.MonkeyPatch, threads: int = 1, **given: Any
) -> tuple[list[bool], joma.ReceivedAttention]:
    """Whether the kernel served each call, and what it found; nothing is computed again."""
    served = []

    def seen(*arguments: Any) -> Any:
        found = received_compiled.compiled_key_sums(*arguments)
        served.append(found is not None)
        return found

    monkeypatch.setattr(module, "compiled_key_sums", seen)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = joma.received_attention(causal=True, tolerance=math.inf, **given)
    finally:
        torch.set_num_threads(before)
    return served, found


@pytest.mark.parametrize("width", [1, 7, 64])
def test_the_kernel_serves_long_texts(route: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks, keys of several strips, widths that fill no panel: as the definition has it."""
    random = torch.Generator().manual_seed(width)
    shapes = {"query": (1, 4, 110, width), "key": (1, 2, 1100, width), "value": (1, 2, 1100, width)}
    given = {name: torch.randn(*shape, generator=random) for name, shape in shapes.items()}
    served, found = key_sums(monkeypatch, **given)
    assert served == [route == "compiled"]
    if width < 64:
        agrees(found, brute(**given, keep=visible(110, 1100, causal=True)))


@pytest.mark.parametrize("own", [True, False])
def test_threads_change_no_bit(route: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = qkv(2, 4, 2, 300, 300)
    if not own:
        monkeypatch.setattr(torch_threads, "torch_parallel", lambda: None)
    given = {"query": query, "key": key, "value": value}
    _, one = key_sums(monkeypatch, **given)
    _, more = key_sums(monkeypatch, threads=3 if route == "compiled" else 1, **given)
    for name in NAMES:
        assert torch.equal(one[name], more[name]), name


def test_a_kernel_that_is_wrong_or_missing_is_not_used(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert received_compiled._agrees(compiled_kernel)
    right = compiled_kernel.key_sums
    monkeypatch.setattr(compiled_kernel, "key_sums", lambda *a: right(*a) * 1.001)
    assert not received_compiled._agrees(compiled_kernel)
    monkeypatch.setattr(received_compiled, "_kernel", lambda: None)
    query, key, value = qkv(1, 4, 2, 70, 70)
    served, found = key_sums(monkeypatch, query=query, key=key, value=value)
    assert served == [False]
    agrees(found, brute(query, key, value, visible(70, 70, causal=True)))


def test_a_row_whose_other_keys_underflow_is_computed_again(route: str) -> None:
    """At 2^-100 float32 holds the second key and not those below it."""
    query, key, value = qkv(1, 1, 1, 60, 60)
    key[0, 0, 0] = query.mean(2)[0, 0] * 100
    query[0, 0] = query.mean(2)[0, 0]
    found = joma.received_attention(query, key, value, causal=True)
    assert found.redone == 1
    agrees(found, brute(query, key, value, visible(60, 60, causal=True)))

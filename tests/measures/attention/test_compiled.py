"""The compiled kernel: its sums against float64, its threads, and what happens where there is no compiler."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import joma
from joma.core.errors import InputError
from joma.measures.attention import compiled as attention_compiled
from joma.measures.attention import compiled_kernel, torch_threads
from joma.measures.attention import entropy as module


@pytest.fixture(autouse=True)
def short_texts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_compiled, "FEWEST", 0)


def expected(
    query: np.ndarray, key: np.ndarray, first: np.ndarray, stop: np.ndarray, own: np.ndarray
) -> np.ndarray:
    """The five sums, row by row in float64."""
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    sums = np.zeros((5, batch, heads, rows))
    for sample, head, row in np.ndindex(batch, heads, rows):
        of = min(sample, len(first) - 1)
        seen = slice(first[of, row], stop[of, row])
        keys = key[sample, head // group, seen].astype(float)
        if len(keys):
            scores = 0.5 * keys @ query[sample, head, row].astype(float)
            below = scores - scores.max()
            weight = 2**below
            away = np.arange(seen.start, seen.stop) - own[row]
            times = np.ones_like(below), below, np.square(keys).sum(-1), away
            sums[:, sample, head, row] = scores.max(), *(weight @ each for each in times)
    return sums


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_sums_equal_those_in_float64(data: st.DataObject) -> None:
    """Any intervals, widths that fill no register, keys that fill no panel, strides, empty rows."""
    draw = data.draw
    batch, key_heads, group = (draw(st.integers(1, 3), label=x) for x in ("batch", "key heads", "group"))
    rows, keys = draw(st.integers(1, 60), label="rows"), draw(st.integers(1, 1200), label="keys")
    width = draw(st.sampled_from([1, 2, 7, 16, 33]), label="width")
    random = np.random.default_rng(draw(st.integers(0, 2**32), label="seed"))
    # As a model has them: rows before heads.
    query = random.standard_normal((batch, rows, key_heads * group, width), np.float32).swapaxes(1, 2)
    key = random.standard_normal((batch, keys, key_heads, width), np.float32).swapaxes(1, 2)
    one = draw(st.booleans(), label="one interval for all samples")
    ends = np.sort(random.integers(0, keys + 1, (2, 1 if one else batch, rows)), 0)
    own = random.integers(0, keys, rows)
    found = compiled_kernel.row_sums(query, key, *ends, own, 0.5, placed=True)
    right = expected(query, key, *ends, own)
    scale = np.maximum(1.0, right[1])  # the sums of signed terms: relative to the sum of weights
    np.testing.assert_allclose(found[:4] / scale, right[:4] / scale, rtol=2e-5, atol=2e-5 * width)
    np.testing.assert_allclose(found[4] / scale, right[4] / scale, atol=2e-5 * keys)


def test_the_exponential_is_right_to_two_units() -> None:
    """The score of a key of width 1 is what it is: x, and 0 for the other; the sum is 1 + 2^x."""
    below = np.linspace(-24, 0, 5001, dtype=np.float32)
    query = below[None, None, :, None]
    key = np.array([1, 0], np.float32)[None, None, :, None]
    ends = np.zeros((1, 5001), np.int64), np.full((1, 5001), 2)
    total = compiled_kernel.row_sums(query, key, *ends, ends[0][0], 1.0, placed=False)[1, 0, 0]
    right = 1 + 2.0**below
    assert float(np.abs(total / right - 1).max()) <= 2.5e-7


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("own", [True, False])
def test_threads_change_nothing(threads: int, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's threads or on others, bit for bit, and torch's number of threads is left alone."""
    query, key = torch.randn(2, 6, 300, 24), torch.randn(2, 2, 300, 24)
    before = torch.get_num_threads()
    one = joma.attention_entropy(query, key, causal=True)
    if not own:
        monkeypatch.setattr(torch_threads, "torch_parallel", lambda: None)
    torch.set_num_threads(threads)
    try:
        found = joma.attention_entropy(query, key, causal=True)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found.route == one.route == "compiled"
    assert torch.equal(found.entropy, one.entropy)


@pytest.mark.parametrize("own", [True, False])
def test_an_interruption_is_not_lost(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled_kernel, "_row_sums", interrupted)
    if not own:
        monkeypatch.setattr(torch_threads, "torch_parallel", lambda: None)
    query = torch.randn(1, 2, 100, 8)
    with pytest.raises(KeyboardInterrupt):
        joma.attention_entropy(query, query)


def test_without_a_compiler_flash_attention_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = torch.randn(2, 4, 200, 16), torch.randn(2, 2, 200, 16)
    with_it = joma.attention_entropy(query, key, causal=True)
    attention_compiled._kernel.cache_clear()
    monkeypatch.delattr("joma.measures.attention.compiled_kernel")
    monkeypatch.setitem(sys.modules, "joma.measures.attention.compiled_kernel", None)
    without = joma.attention_entropy(query, key, causal=True)
    attention_compiled._kernel.cache_clear()
    assert (with_it.route, without.route) == ("compiled", "flash")
    torch.testing.assert_close(with_it.entropy, without.entropy, rtol=0, atol=5e-5)


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compiled_kernel.row_sums
    monkeypatch.setattr(compiled_kernel, "row_sums", lambda *a, **k: right(*a, **k) * 1.001)
    assert not attention_compiled._agrees(compiled_kernel)


def test_no_row_is_charged_for_what_it_does_not_see() -> None:
    """Keys out of sight may be anything at all; NaN among those in sight is named."""
    query, key = torch.randn(1, 2, 600, 8), torch.randn(1, 1, 600, 8)
    clean = joma.attention_entropy(query, key, causal=True, window=20)
    assert clean.route == "compiled"
    scores = module.check_arguments(
        query, key, None, True, None, None, None, 20, None, None, ("entropy",), None, 0, None, 1 << 16
    ).scores
    far = scores.key.clone()
    far[:, :, :100] = math.nan
    own = module.compiled_moments(replace(scores, key=far), module.wanted_moments(()))
    same = module.compiled_moments(scores, module.wanted_moments(()))
    assert own is not None
    assert same is not None
    assert torch.equal(own.entropy[:, :, 120:], same.entropy[:, :, 120:])
    key[0, 0, 300] = math.nan
    with pytest.raises(InputError, match="key 300 is not finite"):
        joma.attention_entropy(query, key, causal=True, window=20)
    key[0, 0, 300] = 0
    query[0, 1, 77, 3] = math.inf
    with pytest.raises(InputError, match="head 1, row 77"):
        joma.attention_entropy(query, key, causal=True, window=20)

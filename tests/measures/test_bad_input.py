"""Bad input of the measures: one sentence each, never a raw error, never a NaN in silence."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import joma
from joma.core.errors import InputError
from joma.measures.bounce import smooth

QUERY = torch.zeros(1, 1, 4, 2)
CURVE = np.sin(np.arange(20.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: joma.entropy_of_logits(torch.tensor([])), "at least one key"),
        (lambda: joma.entropy_of_logits(3.0), "at least one key"),
        (lambda: joma.entropy_of_logits("logits"), "not an array of numbers"),
        (lambda: joma.entropy_of_logits([[1.0], [1.0, 2.0]]), "not an array of numbers"),
        (lambda: joma.entropy_of_logits([1j, 0]), "real numbers"),
        (lambda: joma.entropy_of_probabilities([]), "at least one key"),
        (lambda: joma.entropy_of_probabilities([0.5, 0.6]), r"sums to 1\.1"),
        (lambda: joma.entropy_of_probabilities([[1.0, 0.0], [0.0, 0.0]]), "sums to 0"),
        (lambda: joma.entropy_of_probabilities([math.inf, 0.0]), "sums to inf"),
        (lambda: joma.attention_entropy([[0.0]], [[0.0]]), "query is a list"),
        (lambda: joma.attention_entropy(QUERY, np.array(["a"])), "key is a NumPy array of <U1"),
        (lambda: joma.attention_entropy(QUERY, QUERY, causal="no"), "causal = 'no' is neither"),
        (lambda: joma.attention_entropy(QUERY, QUERY, scale="a"), "scale = 'a'"),
        (lambda: joma.attention_entropy(QUERY, QUERY, scale=math.nan), "scale = nan"),
        (lambda: joma.attention_entropy(QUERY, QUERY, softcap=math.inf), "softcap = inf"),
        (lambda: joma.attention_entropy(QUERY, QUERY, softcap=math.nan), "softcap = nan"),
        (lambda: joma.attention_entropy(QUERY, QUERY, window=2.5, causal=True), "window = 2.5"),
        (lambda: joma.attention_entropy(QUERY, QUERY, window=(1, 0.5)), "window = "),
        (lambda: joma.attention_entropy(QUERY, QUERY, rows=0.5, seed=0.5), "seed = 0.5"),
        (lambda: joma.attention_entropy(QUERY, QUERY, first_position=0.5), "first_position = 0.5"),
        (lambda: joma.attention_entropy(QUERY, QUERY, block_size=1.5), "block_size = 1.5"),
        (lambda: joma.attention_entropy(QUERY, QUERY, mask="causal"), "mask is"),
        (lambda: joma.bounce(range(20), CURVE, window=2.5), "window = 2.5"),
        (lambda: joma.bounce(range(20), CURVE, resamples=0), "resamples = 0"),
        (lambda: joma.bounce(range(20), CURVE, resamples=-3), "resamples = -3"),
        (lambda: joma.bounce(range(20), CURVE, seed=-1), "seed = -1"),
        (lambda: joma.bounce(range(20), ["a"] * 20), "values = .* is not an array of real numbers"),
        (lambda: joma.bounce(["a"] * 20, CURVE), "steps = .* is not an array of real numbers"),
        (lambda: joma.bounce([*range(19), math.inf], CURVE), "steps must increase and be finite"),
        (lambda: smooth(CURVE, 2), "window = 2 must be odd"),
        (lambda: smooth(CURVE, 0), "window = 0"),
        (lambda: smooth([], 3), "at least one"),
        (lambda: smooth([1.0, math.nan], 3), "finite"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_lists_arrays_and_tensors_are_taken_alike(kind: Callable[[list[float]], object]) -> None:
    assert float(joma.entropy_of_logits(kind([1.0, 2.0]))) == pytest.approx(0.5822031)
    assert float(joma.entropy_of_probabilities(kind([0.5, 0.5]))) == pytest.approx(math.log(2))


def test_attention_entropy_takes_numpy_arrays() -> None:
    query = np.random.default_rng(0).normal(size=(1, 2, 5, 4))
    ours = joma.attention_entropy(query, query, causal=True)
    same = joma.attention_entropy(torch.tensor(query), torch.tensor(query), causal=True)
    assert torch.equal(ours.entropy, same.entropy)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_of_a_softmax_pass_in_every_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(50, 512, generator=generator, dtype=torch.float64)
    rows = logits.softmax(-1).to(dtype)
    assert joma.entropy_of_probabilities(rows).shape == (50,)


def test_lists_of_tensors_are_numbers() -> None:
    losses = [torch.tensor(value, requires_grad=True).bfloat16() for value in CURVE]
    found = joma.bounce(range(20), losses)
    assert found.main == joma.bounce(range(20), torch.stack(losses).detach().float()).main

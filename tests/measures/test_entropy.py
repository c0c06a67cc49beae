from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.measures.entropy import entropy_of_logits, entropy_of_probabilities


def exact(logits: list[float]) -> float:
    with mpmath.workdps(60):
        weights = [mpmath.exp(x) if x > -math.inf else mpmath.mpf(0) for x in logits]
        total = mpmath.fsum(weights)
        return float(-mpmath.fsum(w / total * mpmath.log(w / total) for w in weights if w > 0))


logit = st.floats(-800, 800) | st.just(-math.inf)


@given(st.lists(logit, min_size=1, max_size=12).filter(lambda row: max(row) > -math.inf))
def test_entropy_of_logits_equals_high_precision(row: list[float]) -> None:
    ours = float(entropy_of_logits(torch.tensor(row, dtype=torch.float64)))
    assert ours == pytest.approx(exact(row), rel=1e-10, abs=1e-13)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9), st.floats(-1e4, 1e4))
def test_entropy_is_unchanged_by_a_shift_and_bounded(row: list[float], shift: float) -> None:
    logits = torch.tensor(row, dtype=torch.float64)
    entropy = float(entropy_of_logits(logits))
    assert -1e-12 <= entropy <= math.log(len(row)) + 1e-12
    assert float(entropy_of_logits(logits + shift)) == pytest.approx(entropy, abs=1e-8)
    assert float(entropy_of_probabilities(logits.softmax(-1))) == pytest.approx(entropy, abs=1e-10)


def test_edge_rows() -> None:
    inf = math.inf
    rows = torch.tensor([[0.0, 0.0], [1000.0, 0.0], [0.0, -inf], [-inf, -inf]])
    entropy = entropy_of_logits(rows)
    assert entropy[:3].tolist() == pytest.approx([math.log(2), 0.0, 0.0], abs=1e-7)
    assert math.isnan(float(entropy[3]))
    assert float(entropy_of_probabilities(torch.tensor([1.0, 0.0]))) == 0.0
    assert entropy_of_logits(torch.zeros(2, 8, dtype=torch.bfloat16)).dtype == torch.float32


def test_an_issue_reported_elsewhere_as_a_fixture() -> None:
    """128 keys of width 256: scale 1 is nearly one-hot, scale 1/16 nearly uniform (7 bits at most)."""
    random = np.random.default_rng(0)
    query, keys = random.normal(size=(1, 256)), random.normal(size=(128, 256))
    scores = torch.tensor(query @ keys.T)
    sharp, flat = (float(entropy_of_logits(scores * scale)) / math.log(2) for scale in (1.0, 1 / 16))
    assert sharp < 2 < 5.5 < flat < 7


def test_bad_values() -> None:
    with pytest.raises(InputError, match="negative number or NaN"):
        entropy_of_probabilities(torch.tensor([1.1, -0.1]))
    with pytest.raises(InputError, match="negative number or NaN"):
        entropy_of_probabilities(torch.tensor([math.nan, 0.1]))
    with pytest.raises(InputError, match=r"NaN or \+inf"):
        entropy_of_logits(torch.tensor([math.inf, 0.0]))

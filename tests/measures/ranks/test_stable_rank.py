from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.measures.ranks.stable_rank import stable_rank


@given(
    st.lists(st.floats(1e-3, 10), min_size=1, max_size=6),
    st.integers(0, 3),
    st.sampled_from([1e-200, 1.0, 1e150]),
    st.integers(0, 999),
)
def test_known_singular_values(values: list[float], extra: int, scale: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns = len(values) + extra, len(values)
    left = np.linalg.qr(random.normal(size=(rows, columns)))[0]
    right = np.linalg.qr(random.normal(size=(columns, columns)))[0]
    weight = torch.tensor(left * np.array(values) @ right.T * scale)
    expected = sum(value**2 for value in values) / max(values) ** 2
    assert stable_rank(weight) == pytest.approx(expected, rel=1e-9)
    assert stable_rank(weight.T) == pytest.approx(expected, rel=1e-9)


def test_half_precision_is_computed_in_float64() -> None:
    weight = torch.randn(64, 32, dtype=torch.bfloat16)
    assert stable_rank(weight) == stable_rank(weight.double())


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), "shape \\(3,\\)"),
        (torch.ones(0, 3), "shape \\(0, 3\\)"),
        (torch.zeros(2, 2), "is zero"),
        (torch.tensor([[float("nan"), 0.0], [0.0, 1.0]]), "NaN or infinities"),
        (torch.tensor([[float("inf"), 0.0]]), "NaN or infinities"),
    ],
)
def test_bad_weights(weight: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stable_rank(weight)

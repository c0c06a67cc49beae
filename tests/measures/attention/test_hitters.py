"""Heavy hitters against sets by hand."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.measures.attention.received.hitters import (
    even_share,
    heavy_hitters,
    hitter_overlap,
    hitter_share,
)


def test_hitters_by_hand() -> None:
    mass = torch.tensor([[1.0, 7.0, 2.0], [1.0, 1.0, 1.0]])
    assert heavy_hitters(mass).tolist() == [[False, True, True], [True, True, True]]
    assert hitter_share(mass, share=0.5).tolist() == [1 / 3, 2 / 3]
    assert hitter_share(mass[0], torch.tensor([3, 3, 0]), share=0.5) == 0.5
    one, other = torch.tensor([True, True, False]), torch.tensor([False, True, True])
    assert float(hitter_overlap(one, other)) == pytest.approx(1 / 3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any), st.integers(1, 20))
def test_no_smaller_set_receives_the_share(mass: list[int], twentieth: int) -> None:
    share = twentieth / 20
    chosen = heavy_hitters(torch.tensor(mass), share)
    enough = share * sum(mass) - 1e-9
    assert sum(m for m, kept in zip(mass, chosen.tolist(), strict=True) if kept) >= enough
    smaller = int(chosen.sum()) - 1
    assert all(sum(some) < enough for some in combinations(mass, smaller))


def test_uniform_causal_attention_has_its_own_share() -> None:
    mass = torch.ones(50, 50).tril()
    received = (mass / mass.sum(-1, keepdim=True)).sum(0)
    assert even_share(50) == float(hitter_share(received))


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(InputError, match="above 0, at most 1"):
        heavy_hitters(torch.ones(3), share)


@pytest.mark.parametrize("mass", [torch.zeros(3), torch.tensor([1.0, -1.0]), torch.tensor([float("nan")])])
def test_masses_that_are_none_are_refused(mass: torch.Tensor) -> None:
    with pytest.raises(InputError, match="what keys receive"):
        heavy_hitters(mass)

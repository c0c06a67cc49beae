from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.data.hierarchy import draw_hierarchy, pad_in_front


@given(
    st.integers(2, 30),
    st.integers(1, 3),
    st.tuples(st.integers(6, 12), st.integers(6, 15)),
    st.integers(0, 99),
)
def test_sequences_and_latents_follow_the_sets(
    classes: int, children: int, latents: tuple[int, int], seed: int
) -> None:
    classes = min(classes, math.comb(latents[1], children))
    latents = (latents[0], min(latents[1], math.comb(latents[0], children)))
    classes = min(classes, math.comb(latents[1], children))
    drawn = draw_hierarchy(
        classes=classes, latents=latents, children=children, random=np.random.default_rng(seed)
    )
    sequences, (bottom, top) = drawn.sequences(), drawn.latents()
    assert sequences.shape == (classes, 30)
    for members in drawn.sets:
        assert len({tuple(row) for row in members}) == len(members)
        assert all(len(set(row)) == children for row in members)
    for k in range(classes):  # the definition, followed by hand
        tops = drawn.sets[2][k]
        bottoms = [b for t in tops for b in drawn.sets[1][t]]
        tokens = [t for b in bottoms for t in drawn.sets[0][b]]
        assert sequences[k].tolist() == [drawn.padding] * (30 - len(tokens)) + tokens
        assert set(np.flatnonzero(top[k])) == set(tops)
        assert set(np.flatnonzero(bottom[k])) == set(bottoms)


def test_the_whole_table_can_be_drawn() -> None:
    for classes in (20, 30, 50):
        for children in (2, 3):
            for latents in ((10, 20), (20, 30)):
                random = np.random.default_rng(0)
                drawn = draw_hierarchy(classes=classes, latents=latents, children=children, random=random)
                assert (drawn.sequences()[:, -(children**3) :] < 100).all()


def test_every_combination_can_be_asked_for() -> None:
    drawn = draw_hierarchy(classes=6, latents=(4,), children=2, random=np.random.default_rng(1))
    assert len({tuple(row) for row in drawn.sets[-1]}) == 6


def test_bad_input() -> None:
    random = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"latents of level 1: 7 different .* only 6 exist"):
        draw_hierarchy(classes=7, latents=(5, 4), children=2, random=random)
    with pytest.raises(InputError, match="only 0 exist"):
        draw_hierarchy(classes=2, latents=(5, 2), children=3, random=random)
    with pytest.raises(InputError, match=r"sequences of 64 tokens, longer than length L = 30"):
        draw_hierarchy(classes=3, latents=(10, 20), children=4, random=random)
    with pytest.raises(InputError, match="at least 1"):
        draw_hierarchy(classes=0, latents=(10, 20), children=2, random=random)
    with pytest.raises(InputError, match="longer than length L = 3"):
        pad_in_front(np.zeros((2, 4), dtype=np.int64), 3, 9)

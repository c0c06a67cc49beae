from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.measures.coherence import (
    BINS,
    Cosines,
    Directions,
    aligned_coherence,
    cross_coherence,
    embedding_coherence,
    random_absolute_cosine,
    random_cosine_quantile,
    random_largest_cosine,
)
from joma.theory import coherence as theory


def made(seed: int, rows: int = 14, width: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, width)), random.normal(size=(rows, width)), random.integers(0, 6, rows)


def units(vectors: np.ndarray, centred: bool) -> np.ndarray:
    vectors = vectors - vectors.mean(0) if centred else vectors
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def agree(found: Cosines | None, values: dict[tuple[int, int], float], tokens: np.ndarray) -> None:
    """With the list of all cosines, and the jackknife token by token."""
    if not values:
        assert found is None
        return
    assert found is not None
    cosines = np.array(list(values.values()))
    assert found.pairs == len(cosines) == found.histogram.sum()
    np.testing.assert_allclose(found.mean, cosines.mean(), atol=1e-13)
    np.testing.assert_allclose(found.mean_absolute, np.abs(cosines).mean(), atol=1e-13)
    np.testing.assert_allclose(found.root_mean_square, np.sqrt((cosines**2).mean()), atol=1e-13)
    np.testing.assert_allclose(found.largest, np.abs(cosines).max(), atol=1e-13)
    np.testing.assert_allclose(abs(values[found.largest_pair]), found.largest, atol=1e-13)
    for q in (0.0, 0.3, 0.5, 1.0):
        truth = np.quantile(np.abs(cosines), q, method="inverted_cdf")
        assert abs(found.quantile(q) - truth) <= 0.5 / BINS + 1e-12
    members = sorted({int(tokens[i]) for pair in values for i in pair})
    left = [np.array([c for p, c in values.items() if m not in tokens[list(p)]]) for m in members]
    if len(members) < 2 or not all(part.size for part in left):
        assert math.isnan(found.mean_error)
        return
    for error, statistic in (
        (found.mean_error, np.mean),
        (found.mean_absolute_error, lambda c: np.abs(c).mean()),
        (found.root_mean_square_error, lambda c: np.sqrt((c**2).mean())),
    ):
        without = np.array([statistic(part) for part in left])
        np.testing.assert_allclose(error, np.sqrt((len(without) - 1) * without.var()), atol=1e-10)


@given(st.integers(0, 1000), st.booleans(), st.sampled_from([1, 4, 1024]))
def test_within_a_set_against_all_pairs(seed: int, centred: bool, block: int) -> None:
    vectors, _, tokens = made(seed)
    gram = units(vectors, centred) @ units(vectors, centred).T
    found = embedding_coherence(vectors, tokens=tokens, centred=centred, block=block)
    pairs = {p: float(gram[p]) for p in combinations(range(len(vectors)), 2)}
    agree(found.different, {p: c for p, c in pairs.items() if tokens[p[0]] != tokens[p[1]]}, tokens)
    agree(found.same_token, {p: c for p, c in pairs.items() if tokens[p[0]] == tokens[p[1]]}, tokens)
    assert found.same_row is None
    assert found.width == 5
    alone = embedding_coherence(torch.from_numpy(vectors), centred=centred, block=block)
    agree(alone.different, pairs, np.arange(len(vectors)))
    assert alone.same_token is None


@given(st.integers(0, 1000), st.booleans(), st.sampled_from([1, 4, 1024]))
def test_between_sets_against_all_pairs(seed: int, centred: bool, block: int) -> None:
    a, b, tokens = made(seed)
    gram = units(a, centred) @ units(b, centred).T
    found = cross_coherence(a, b, tokens=tokens, centred=centred, block=block)
    pairs = {p: float(gram[p]) for p in product(range(len(a)), repeat=2)}
    same = {p: c for p, c in pairs.items() if tokens[p[0]] == tokens[p[1]]}
    agree(found.different, {p: c for p, c in pairs.items() if p not in same}, tokens)
    agree(found.same_token, {p: c for p, c in same.items() if p[0] != p[1]}, tokens)
    rows = {p: c for p, c in same.items() if p[0] == p[1]}
    agree(found.same_row, rows, tokens)
    aligned = aligned_coherence([a, 2 * a, b], tokens=tokens, centred=centred)
    agree(aligned[0, 2], rows, tokens)
    agree(aligned[1, 2], rows, tokens)
    assert aligned[0, 1].mean == pytest.approx(1, abs=1e-12)


@given(st.integers(0, 1000), st.floats(1e-150, 1e150))
def test_lengths_signs_and_rotations_do_not_matter(seed: int, scale: float) -> None:
    vectors, _, tokens = made(seed)
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(5, 5)))[0]
    signs = random.choice([-1.0, 1.0], len(vectors))
    plain = embedding_coherence(vectors, tokens=tokens).different
    other = embedding_coherence(scale * signs[:, None] * vectors @ turn, tokens=tokens).different
    assert plain is not None
    assert other is not None
    np.testing.assert_allclose(other.mean_absolute, plain.mean_absolute, atol=1e-12)
    np.testing.assert_allclose(other.largest, plain.largest, atol=1e-12)


def test_orthonormal_vectors_have_coherence_zero() -> None:
    found = embedding_coherence(np.eye(6)).different
    assert found is not None
    assert (found.mean, found.mean_absolute, found.largest) == (0, 0, 0)
    assert found.largest_pair[0] != found.largest_pair[1]


def test_agrees_with_the_theorys_coherence() -> None:
    embeddings = theory.random_embeddings(40, 9, seed=3)
    found = embedding_coherence(embeddings.T).different
    assert found is not None
    np.testing.assert_allclose(found.largest, theory.coherence(embeddings), atol=1e-14)


@pytest.mark.parametrize("width", [2, 3, 30, 576])
def test_random_directions(width: int) -> None:
    vectors = np.random.default_rng(width).normal(size=(600, width))
    found = embedding_coherence(vectors).different
    assert found is not None
    assert abs(found.mean) < 5 * found.mean_error
    # Pairs of independent directions are pairwise independent.
    error = 5 * np.sqrt((1 / width - random_absolute_cosine(width) ** 2) / found.pairs)
    assert abs(found.mean_absolute - random_absolute_cosine(width)) < error
    assert found.root_mean_square == pytest.approx(width**-0.5, rel=0.02)
    for q in (0.1, 0.5, 0.95):
        assert found.quantile(q) == pytest.approx(random_cosine_quantile(width, q), abs=0.005)
    assert found.largest == pytest.approx(random_largest_cosine(width, found.pairs), rel=0.15)


def test_laws_of_random_directions() -> None:
    # Two dimensions: cos of a uniform angle. Three: uniform in [-1, 1]. One: always 1.
    assert random_absolute_cosine(2) == pytest.approx(2 / math.pi, rel=1e-14)
    assert random_absolute_cosine(3) == pytest.approx(0.5, rel=1e-14)
    assert random_absolute_cosine(1) == pytest.approx(1.0, rel=1e-14)
    assert random_cosine_quantile(3, 0.25) == pytest.approx(0.25, rel=1e-12)
    assert random_cosine_quantile(1, 0.3) == 1.0
    approximation = math.sqrt(2 / (math.pi * 576))
    assert random_absolute_cosine(576) == pytest.approx(approximation * (1 + 1 / (4 * 576)), rel=1e-6)
    for tokens, dimension in ((50, 7), (1000, 576)):
        pairs = tokens * (tokens - 1) // 2
        assert random_largest_cosine(dimension, pairs) == pytest.approx(
            theory.random_coherence(tokens, dimension), rel=1e-12
        )
    assert random_largest_cosine(1, 3) == 1.0


def test_standard_errors_are_the_spread_over_draws() -> None:
    found = []
    shift = np.r_[1.0, np.zeros(7)]
    for seed in range(80):
        coherence = embedding_coherence(np.random.default_rng(seed).normal(size=(40, 8)) + shift).different
        assert coherence is not None
        found.append((coherence.mean, coherence.mean_error))
    mean, error = np.array(found).T
    assert np.sqrt((error**2).mean()) == pytest.approx(mean.std(), rel=0.3)


def test_a_common_component_is_what_centring_takes_away() -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 50)) + 10 * np.eye(50)[0]
    raw = embedding_coherence(vectors).different
    centred = embedding_coherence(vectors, centred=True).different
    assert raw is not None
    assert centred is not None
    assert raw.mean > 0.5
    assert centred.mean == pytest.approx(-1 / 199, abs=1e-3)
    assert centred.mean_absolute == pytest.approx(random_absolute_cosine(50), rel=0.05)


def test_bad_input() -> None:
    good = np.eye(4)
    broken, zero = good.copy(), good.copy()
    broken[2, 1] = np.nan
    zero[3] = 0
    calls: list[tuple[Any, str]] = [
        (lambda: embedding_coherence(good[0]), "shape"),
        (lambda: embedding_coherence(good[:1]), "two vectors"),
        (lambda: embedding_coherence("abc"), "array of numbers"),
        (lambda: embedding_coherence(broken), "row 2"),
        (lambda: embedding_coherence(zero), "row 3"),
        (lambda: embedding_coherence(np.ones((3, 2)), centred=True), "after centring"),
        (lambda: embedding_coherence(good, tokens=[1, 2]), "tokens"),
        (lambda: embedding_coherence(good, tokens=[0.5] * 4), "whole number"),
        (lambda: embedding_coherence(good, block=0), "block = 0"),
        (lambda: cross_coherence(good, good[:3]), r"\(4, 4\) and \(3, 4\)"),
        (lambda: cross_coherence(good, broken), "second"),
        (lambda: embedding_coherence(Directions.of(good), centred=True), "were not centred"),
        (lambda: aligned_coherence([good]), "two or more"),
        (lambda: aligned_coherence([good, good[:3]]), "of one shape"),
        (lambda: random_absolute_cosine(0), "width = 0"),
        (lambda: random_cosine_quantile(3, 1.5), "1.5"),
        (lambda: random_largest_cosine(3, 0), "pairs = 0"),
    ]
    for call, message in calls:
        with pytest.raises(InputError, match=message):
            call()
    found = embedding_coherence(good).different
    assert found is not None
    with pytest.raises(InputError, match="probability"):
        found.quantile(-0.1)

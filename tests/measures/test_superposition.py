from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from scipy.stats import kstest

from joma.core.errors import InputError
from joma.measures.superposition import (
    attended_similarity,
    matched_draws,
    null_probability,
    rarity,
    superposition,
)

VOCABULARY = 400


def bag_cosine(x: list[tuple[int, float]], y: list[tuple[int, float]]) -> float:
    """The definition, with dictionaries."""
    a: Counter[int] = Counter()
    b: Counter[int] = Counter()
    for token, weight in x:
        a[token] += weight  # type: ignore[assignment]
    for token, weight in y:
        b[token] += weight  # type: ignore[assignment]
    norms = (sum(v * v for v in a.values()) * sum(v * v for v in b.values())) ** 0.5
    return sum(a[t] * b[t] for t in a) / norms if norms else 0.0


def by_scipy(similarity: np.ndarray, smallest: int) -> float:
    """The score from SciPy's average linkage and the sentence in the docstring."""
    contexts = len(similarity)
    tree = linkage(squareform(1 - similarity, checks=False), "average")
    best = 0.0
    for clusters in range(1, contexts):
        labels = cut_tree(tree, n_clusters=clusters)[:, 0]
        groups = [np.flatnonzero(labels == c) for c in range(clusters)]
        groups = [g for g in groups if len(g) >= smallest]

        def cohesion(group: np.ndarray) -> float:
            block = similarity[np.ix_(group, group)]
            return float(block[~np.eye(len(group), dtype=bool)].mean())

        groups.sort(key=cohesion, reverse=True)
        for number in range(2, len(groups) + 1):
            chosen = groups[:number]
            between = np.mean(
                [similarity[np.ix_(a, b)].mean() for k, a in enumerate(chosen) for b in chosen[:k]]
            )
            coverage = sum(map(len, chosen)) / contexts
            best = max(best, coverage * (cohesion(chosen[-1]) - 2 * between))
    return best


def random_similarity(seed: int, contexts: int, width: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(contexts, width)) + 0.5
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


@given(st.integers(0, 10**6), st.integers(4, 14), st.integers(2, 6), st.integers(2, 4))
def test_score_is_that_of_scipys_linkage(seed: int, contexts: int, width: int, smallest: int) -> None:
    similarity = random_similarity(seed, contexts, width)
    found = superposition(similarity[None], smallest=smallest)
    if contexts < 2 * smallest:
        assert np.isnan(found.score[0])
    else:
        assert found.score[0] == pytest.approx(by_scipy(similarity, smallest), abs=1e-12)


@given(st.integers(0, 10**6))
def test_contexts_that_are_not_there_change_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    similarity = np.stack([random_similarity(seed + k, 12, 4) for k in range(3)])
    valid = random.random((3, 12)) < 0.8
    found = superposition(similarity, valid=valid)
    for neuron in range(3):
        kept = np.flatnonzero(valid[neuron])
        alone = superposition(similarity[neuron][np.ix_(kept, kept)][None])
        np.testing.assert_allclose(found.score[neuron], alone.score[0], atol=1e-12)
        np.testing.assert_array_equal(found.pattern[neuron, kept], alone.pattern[0])
        assert (found.pattern[neuron, ~valid[neuron]] == -1).all()
        off = ~np.eye(len(kept), dtype=bool)
        mean = similarity[neuron][np.ix_(kept, kept)][off].mean()
        assert found.overall[neuron] == pytest.approx(mean, abs=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_similarity_is_the_cosine_of_bags(seed: int, attended: int) -> None:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 6, size=(2, 5, attended))
    weights = random.random((2, 5, attended)) * (random.random((2, 5, attended)) < 0.8)
    similarity = attended_similarity(tokens, weights)
    for neuron in range(2):
        bags = [list(zip(tokens[neuron, c], weights[neuron, c], strict=True)) for c in range(5)]
        wanted = [[bag_cosine(x, y) for y in bags] for x in bags]
        np.testing.assert_allclose(similarity[neuron], wanted, atol=1e-12)


def test_rarity_counts_contexts_not_positions() -> None:
    tokens = [[1, 1, 2], [1, 3, 3], [1, 2, 4]]
    weights = [[0.5, 0.1, 0.2], [1.0, 0.2, 0.0], [0.3, 0.2, 0.0]]
    wanted = [0, 0, np.log(3 / 2), np.log(3), 0, 0]
    np.testing.assert_allclose(rarity(tokens, weights, vocabulary_size=6), wanted)


def planted(random: np.random.Generator, neurons: int, patterns: int, contexts: int = 16) -> np.ndarray:
    """Bags of 6 tokens: 3 of the pattern's own 4 tokens, 3 at random; which pattern, at random."""
    own = random.permutation(VOCABULARY)[: neurons * patterns * 4].reshape(neurons, patterns, 4)
    which = random.permuted(np.tile(np.arange(contexts) % patterns, (neurons, 1)), axis=1)
    tokens = random.integers(0, VOCABULARY, size=(neurons, contexts, 6))
    for neuron in range(neurons):
        for context in range(contexts):
            tokens[neuron, context, :3] = random.permutation(own[neuron, which[neuron, context]])[:3]
    return tokens


def scored(tokens: np.ndarray, random: np.random.Generator, draws: int) -> tuple[np.ndarray, np.ndarray]:
    weights = np.ones(tokens.shape)
    weights *= rarity(
        tokens.reshape(-1, tokens.shape[-1]), weights.reshape(-1, 6), vocabulary_size=VOCABULARY
    )[tokens]
    windows = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
    found = superposition(attended_similarity(tokens, weights))
    picked = matched_draws(windows, draws=draws, random=random).reshape(-1, tokens.shape[1])
    flat_tokens, flat_weights = tokens.reshape(-1, 6)[picked], weights.reshape(-1, 6)[picked]
    null = superposition(attended_similarity(flat_tokens, flat_weights))
    return found.score, null_probability(found.score, null.score)


def test_planted_superposition_stands_apart_from_one_pattern_and_from_none() -> None:
    random = np.random.default_rng(0)
    one = planted(random, 20, 1)
    two = planted(random, 20, 2)
    none = random.integers(0, VOCABULARY, size=(60, 16, 6))
    score, probability = scored(np.concatenate([two, one, none]), random, draws=20)
    assert score[:20].min() > score[20:].max()
    assert (probability[:20] < 0.01).all()
    # Of the 80 without superposition about 4 are expected below 0.05; 12 or more has probability 1e-3.
    assert (probability[20:] < 0.05).sum() < 12


def test_planted_patterns_are_found_context_by_context() -> None:
    similarity = np.full((1, 9, 9), 0.05)
    similarity[0, :4, :4] = 0.8
    similarity[0, 4:8, 4:8] = 0.6
    similarity[0, np.arange(9), np.arange(9)] = 1
    order = np.array([8, 4, 0, 5, 1, 6, 2, 7, 3])
    found = superposition(similarity[:, order][:, :, order])
    assert found.patterns[0] == 2
    assert found.pattern[0].tolist() == [-1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert found.score[0] == pytest.approx(8 / 9 * (0.6 - 2 * 0.05))
    assert (found.cohesion[0], found.between[0]) == pytest.approx((0.6, 0.05))


def test_probabilities_are_uniform_on_contexts_at_random() -> None:
    random = np.random.default_rng(1)
    words = 1 / np.arange(1, VOCABULARY + 1)  # Zipf: chance repeats of common tokens, as in text
    tokens = random.choice(VOCABULARY, p=words / words.sum(), size=(400, 16, 6))
    _, probability = scored(tokens, random, draws=5)
    assert kstest(probability, "uniform").pvalue > 0.01
    assert 0.02 < (probability <= 0.05).mean() < 0.09


def test_draws_stay_within_windows() -> None:
    random = np.random.default_rng(2)
    windows = random.integers(0, 5, size=(7, 4))
    valid = random.random((7, 4)) < 0.7
    picked = matched_draws(windows, valid=valid, draws=300, random=random)
    assert picked.shape == (300, 7, 4)
    flat_windows, flat_valid = windows.reshape(-1), valid.reshape(-1)
    assert (flat_windows[picked] == windows).all()
    assert flat_valid[picked[:, valid]].all()
    assert (picked[:, ~valid] == np.flatnonzero(~valid.reshape(-1))).all()
    # Every entry of a window is drawn, about equally often.
    at = tuple(np.argwhere(valid)[0])
    same = np.flatnonzero(flat_valid & (flat_windows == windows[at]))
    counts = np.bincount(picked[(slice(None), *at)], minlength=28)[same]
    assert counts.sum() == 300
    assert counts.min() > 0.5 * 300 / len(same)


def test_null_probability() -> None:
    p = null_probability([0.5, 0.2, np.nan, 0.9], [0.1, 0.5, np.nan, 0.3])
    np.testing.assert_allclose(p, [0.5, 0.75, np.nan, 0.25])


def test_bad_input() -> None:
    square = np.zeros((1, 4, 4))
    with pytest.raises(InputError, match=r"shape \(4, 4\)"):
        superposition(square[0])
    with pytest.raises(InputError, match="NaN or infinity"):
        superposition(square + np.nan)
    with pytest.raises(InputError, match="smallest = 1"):
        superposition(square, smallest=1)
    with pytest.raises(InputError, match=r"valid has shape \(2, 4\)"):
        superposition(square, valid=np.ones((2, 4)))
    with pytest.raises(InputError, match="one shape"):
        attended_similarity(np.zeros((3, 2), dtype=int), np.zeros((3, 1)))
    with pytest.raises(InputError, match="float64"):
        attended_similarity(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(InputError, match="negative"):
        rarity(np.zeros((3, 2), dtype=int), -np.ones((3, 2)), vocabulary_size=3)
    with pytest.raises(InputError, match="from 0 to 7 with vocabulary_size = 3"):
        rarity([[0, 7]], [[1.0, 1.0]], vocabulary_size=3)
    with pytest.raises(InputError, match="no null score"):
        null_probability([0.3], [np.nan])
    with pytest.raises(InputError, match="draws = 0"):
        matched_draws([[0, 1]], draws=0, random=np.random.default_rng())

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.dynamics import block_flow
from joma.theory.activation import activation
from joma.theory.attention import Attention
from joma.theory.block import Block, Embeddings
from joma.theory.coherence import (
    attention_side,
    coherence,
    drift,
    drift_bound,
    lemma_dimension,
    path_drift,
    predicted_drift,
    printed_dimension,
    random_coherence,
    random_dimension,
    random_embeddings,
    surviving_invariant,
    typical_drift,
    welch_bound,
)

RATES = {"weight_rate": 1.4, "attention_rate": 0.8}


def test_coherence_by_enumeration_and_scale() -> None:
    vectors = random_embeddings(40, 7, seed=1)
    pairs = [abs(vectors[:, i] @ vectors[:, j]) for i in range(40) for j in range(i)]
    assert coherence(vectors * np.linspace(0.1, 9, 40)) == pytest.approx(max(pairs), rel=1e-12)
    assert coherence(np.eye(5)) == 0.0
    assert coherence(np.ones((3, 1))) == 0.0


def test_coherence_of_many_goes_through_in_blocks() -> None:
    vectors = random_embeddings(2100, 3, seed=2)
    vectors[:, 2050] = -vectors[:, 3]
    assert coherence(vectors) == pytest.approx(1.0, abs=1e-15)


def test_welch_bound_is_met_by_the_simplex_and_by_mercedes() -> None:
    for dimension in (2, 3, 10):
        simplex = np.eye(dimension + 1) - 1 / (dimension + 1)
        assert coherence(simplex) == pytest.approx(welch_bound(dimension + 1, dimension), rel=1e-12)
    assert welch_bound(5, 8) == 0.0


@given(tokens=st.integers(3, 60), dimension=st.integers(2, 20), seed=st.integers(0, 999))
def test_welch_bounds_random_embeddings(tokens: int, dimension: int, seed: int) -> None:
    assert (
        coherence(random_embeddings(tokens, dimension, seed=seed)) >= welch_bound(tokens, dimension) - 1e-12
    )


def test_random_coherence_has_the_probability_it_says() -> None:
    measured = np.array([coherence(random_embeddings(60, 40, seed=s)) for s in range(400)])
    for probability in (0.2, 0.5, 0.9):
        share = np.mean(measured <= random_coherence(60, 40, probability=probability))
        assert share == pytest.approx(probability, abs=4 * np.sqrt(probability * (1 - probability) / 400))


def test_random_dimension_is_least_and_enough() -> None:
    dimension = random_dimension(200, 0.3, failure=0.05)
    failed = [coherence(random_embeddings(200, dimension, seed=s)) > 0.3 for s in range(200)]
    assert np.mean(failed) <= 0.05 + 3 * np.sqrt(0.05 / 200)
    # At the least dimension the union bound is nearly sharp, so that one tenth fewer fails often.
    failed = [coherence(random_embeddings(200, int(0.8 * dimension), seed=s)) > 0.3 for s in range(50)]
    assert np.mean(failed) > 0.3


@pytest.mark.parametrize(("tokens", "epsilon"), [(100, 0.1), (1000, 0.3), (30000, 0.05)])
def test_printed_dimension_lies_between_what_is_needed_and_what_the_lemma_gives(tokens, epsilon) -> None:
    assert random_dimension(tokens, epsilon) < 0.55 * printed_dimension(tokens, epsilon)
    assert printed_dimension(tokens, epsilon) < lemma_dimension(tokens, epsilon)


def flow(kind: str, embeddings, query=None, *, seed: int = 1, name: str = "tanh", moments: int = 400):
    rng = np.random.default_rng(seed)
    dimension, tokens = embeddings.shape
    query = np.zeros(dimension) if query is None else query
    block = Block(Embeddings(embeddings, query), Attention(kind=kind, temperature=0.7), activation(name))
    trajectory = block_flow.solve(
        block,
        rng.dirichlet(np.ones(tokens), 20),
        0.5 * rng.normal(size=(20, 2)),
        weights=0.3 * rng.normal(size=(2, dimension)),
        logits=0.3 * rng.normal(size=tokens) + (kind == "linear"),
        times=np.linspace(0, 3, moments),
        weight_rate=RATES["weight_rate"],
        attention_rate=RATES["attention_rate"],
    )
    side = attention_side(block.attention, trajectory.logits, correction=trajectory.correction, **RATES)
    return trajectory, side


@settings(max_examples=12)
@given(
    kind=st.sampled_from(["linear", "exp", "softmax"]),
    dimension=st.integers(2, 9),
    seed=st.integers(0, 99),
    name=st.sampled_from(["linear", "tanh", "gelu"]),
)
def test_one_invariant_survives_any_embeddings(kind, dimension, seed, name) -> None:
    vectors = random_embeddings(6, dimension, seed=seed) * np.linspace(0.5, 1.5, 6)
    trajectory, side = flow(kind, vectors, seed=seed, name=name, moments=5)
    kept = surviving_invariant(vectors, trajectory.weights, side)
    assert kept.shape == (len(trajectory.times), 1)
    assert np.ptp(kept) <= 1e-9 * (1 + np.abs(side).max())
    if dimension < 6:  # and the single tokens' invariants do not
        assert np.abs(drift(side, trajectory.context_weights)[-1]).max() > 1e-5


def test_survivor_with_an_orthogonal_residual_and_groups() -> None:
    vectors = np.zeros((6, 6))
    vectors[:2, :3] = random_embeddings(3, 2, seed=3)
    vectors[2:5, 3:] = random_embeddings(3, 3, seed=4)
    trajectory, side = flow("exp", vectors, np.eye(6)[5], moments=5)
    groups = [0, 0, 0, 1, 1, 1]
    kept = surviving_invariant(vectors, trajectory.weights, side, groups=groups)
    assert kept.shape == (5, 2)
    assert np.ptp(kept, axis=0).max() <= 1e-10
    with pytest.raises(InputError, match="orthogonal to each other"):
        surviving_invariant(vectors, trajectory.weights, side, groups=[0, 0, 1, 1, 1, 1])


def test_survivor_dies_with_an_overlapping_residual() -> None:
    vectors = random_embeddings(4, 6, seed=3)
    trajectory, side = flow("exp", vectors, vectors[:, 0], moments=5)
    assert np.ptp(surviving_invariant(vectors, trajectory.weights, side)) > 1e-3


@pytest.mark.parametrize("kind", ["linear", "exp", "softmax"])
def test_exact_line_integral_and_bound(kind: str) -> None:
    vectors = random_embeddings(8, 11, seed=5)
    query = 0.4 * vectors[:, 2] + random_embeddings(1, 11, seed=6)[:, 0]
    errors = []
    for moments in (200, 400):
        trajectory, side = flow(kind, vectors, query, moments=moments)
        moved = trajectory.weights - trajectory.weights[0] - trajectory.bias[..., None] * query
        accumulated = moved @ np.linalg.pinv(vectors).T
        exact = path_drift(
            vectors.T @ vectors,
            trajectory.context_weights,
            accumulated,
            query_overlap=vectors.T @ query,
            bias=trajectory.bias,
        )
        actual = drift(side, trajectory.context_weights)
        errors.append(np.abs(exact - actual).max())
    assert errors[1] < 2e-5 * np.abs(actual).max()
    assert errors[0] / errors[1] == pytest.approx(4, abs=0.3)  # the midpoint rule's error, of second order
    bound = drift_bound(
        max(coherence(vectors), np.abs(vectors.T @ query).max()),
        np.abs(trajectory.context_weights).max(axis=0),
        np.abs(np.diff(accumulated, axis=0)).sum(axis=0),
        bias_lengths=np.abs(np.diff(trajectory.bias, axis=0)).sum(axis=0),
    )
    assert np.all(np.abs(actual).max(axis=0) <= bound)


def test_first_order_drift_leaves_a_second_order_rest() -> None:
    """Along E and half of E the first-order formula's relative error halves as well."""
    base = random_embeddings(5, 40, seed=7)
    rest = []
    for scale in (1.0, 0.5):
        gram = np.eye(5) + 0.05 * scale * (base.T @ base - np.eye(5))
        vectors = np.linalg.cholesky(gram).T
        rng = np.random.default_rng(0)
        block = Block(Embeddings(vectors, np.zeros(5)), Attention(kind="exp"))
        course = block_flow.solve(
            block,
            rng.dirichlet(np.ones(5), 9),
            rng.normal(size=(9, 2)),
            weights=np.zeros((2, 5)),
            logits=np.zeros(5),
            times=np.linspace(0, 2, 600),
        )
        v = course.context_weights
        actual = drift(attention_side(block.attention, course.logits), v)[-1]
        first = path_drift(gram, v)[-1]
        rest.append(np.abs(first - actual).max() / np.abs(actual).max())
        straight = predicted_drift(gram, v)[-1]
        assert np.abs(straight - actual).max() < 0.3 * np.abs(actual).max()
    assert rest[0] / rest[1] == pytest.approx(2, rel=0.1)


def test_typical_drift_is_the_root_mean_square_over_embeddings() -> None:
    weights = np.random.default_rng(0).normal(size=(3, 6))
    squares = []
    for seed in range(3000):
        vectors = random_embeddings(6, 50, seed=seed)
        path = np.stack([np.zeros_like(weights), weights])
        squares.append(predicted_drift(vectors.T @ vectors, path)[-1] ** 2)
    measured = np.sqrt(np.mean(squares, axis=0))
    np.testing.assert_allclose(measured, typical_drift(weights, 50), rtol=0.06)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: coherence(np.zeros((2, 2))), "no direction"),
        (lambda: coherence(np.zeros(3)), "shape"),
        (lambda: welch_bound(0, 3), "positive"),
        (lambda: random_embeddings(3, 0, seed=0), "positive"),
        (lambda: printed_dimension(10, 1.5), "epsilon"),
        (lambda: lemma_dimension(1, 0.1), "two tokens"),
        (lambda: random_dimension(10, 0.1, failure=0.0), "failure"),
        (lambda: random_coherence(10, 1), "two dimensions"),
        (lambda: random_coherence(10, 3, probability=1.0), "probability"),
        (lambda: attention_side(Attention(), [0.0]), "correction"),
        (lambda: attention_side(Attention(), [0.0], attention_rate=-1.0), "attention_rate"),
        (lambda: drift(np.zeros(3), np.zeros((1, 1, 3))), "moments"),
        (lambda: predicted_drift(np.ones((2, 3)), np.zeros((1, 1, 3))), "symmetric"),
        (lambda: path_drift(np.eye(2), np.zeros((3, 1, 2)), np.zeros((2, 1, 2))), "accumulated"),
        (lambda: path_drift(np.eye(2), np.zeros((3, 1, 2)), bias=np.zeros((3, 1))), "together"),
        (lambda: path_drift(np.eye(2), np.full((3, 1, 2), np.nan)), "finite"),
        (lambda: drift_bound(2.0, np.ones((1, 2)), np.ones((1, 2))), "cosine"),
        (lambda: drift_bound(0.1, np.ones((1, 2)), np.ones((2, 2))), "nodes"),
        (lambda: typical_drift(np.ones(3), 4), "nodes"),
        (lambda: surviving_invariant(np.eye(3), np.zeros((2, 1, 4)), np.zeros((2, 3))), "match"),
        (lambda: surviving_invariant(np.eye(3), np.zeros((2, 1, 3)), np.zeros((2, 3)), groups=[0]), "label"),
    ],
)
def test_bad_input(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_drift_bound_by_hand():
    """One node, two tokens: each drifts by at most epsilon |v_l| times the other's path; two nodes add up."""
    found = drift_bound(0.1, [[2.0, 3.0]], [[5.0, 7.0]])
    assert found == pytest.approx([0.1 * 2 * 7, 0.1 * 3 * 5], rel=1e-14)
    found = drift_bound(0.1, [[2.0, 3.0], [1.0, 1.0]], [[5.0, 7.0], [1.0, 2.0]], bias_lengths=[4.0, 6.0])
    assert found == pytest.approx([0.1 * (2 * 11 + 8), 0.1 * (3 * 9 + 7)], rel=1e-14)


def test_in_three_dimensions_a_cosine_is_uniform() -> None:
    # So exp(-(1 - eps)) = 1/2 for the one pair of two vectors.
    assert random_coherence(2, 3) == pytest.approx(1 - np.log(2), rel=1e-12)

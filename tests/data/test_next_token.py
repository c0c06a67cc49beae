from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.data.next_token import NextTokenData, graded_tokens


def test_graded_tokens_are_laid_out_as_said():
    data = graded_tokens(
        last_tokens=2, next_per_last=2, common=1, common_per_last=2, distinct=3, distinct_weights=(0.2, 0.6)
    )
    assert (data.classes, data.last_tokens, data.contextual_tokens) == (4, 2, 1 + 4 + 12)
    assert data.logits == 17 + 2 + 4
    assert data.last_of_next.tolist() == [0, 0, 1, 1]
    row = data.conditional[3] * (1 + 2 + 0.2 + 0.4 + 0.6)
    expected = np.zeros(17)
    expected[[0, 3, 4]] = 1
    expected[14:] = [0.2, 0.4, 0.6]
    np.testing.assert_allclose(row, expected, atol=1e-15)
    assert np.flatnonzero(data.common).tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(data.common_per_last).tolist() == [1, 2, 3, 4]
    assert np.flatnonzero(data.distinct[1]).tolist() == [8, 9, 10]
    np.testing.assert_allclose(data.prior, 0.25)


def test_any_conditional_probabilities_under_any_names():
    data = NextTokenData.from_pairs(
        {
            ("cat", "sat"): [0.5, 0.5, 0.0],
            ("dog", "ran"): [0.2, 0.0, 0.8],
            ("cat", "purred"): [1.0, 0.0, 0.0],
        },
        class_probability=[0.5, 0.25, 0.25],
        outputs=3,
    )
    assert data.last_of_next.tolist() == [0, 1, 0]
    assert data.logits == 3
    assert data.common.tolist() == [True, False, False]
    assert data.distinct.any(axis=1).tolist() == [True, True, False]
    with pytest.raises(InputError, match=r"next tokens \[2\] have no distinct token"):
        data.require_distinct("here")


@given(st.integers(0, 1000), st.integers(2, 60))
def test_counts_sum_to_the_context_and_stay_within_the_class(seed, length):
    data = graded_tokens(last_tokens=2, next_per_last=1, common=2, distinct=3)
    classes, counts = data.sample_counts(20, length, np.random.default_rng(seed))
    assert (counts.sum(axis=1) == length - 1).all()
    assert (counts[data.conditional[classes] == 0] == 0).all()


def test_frequencies_tend_to_the_conditional_probabilities():
    data = NextTokenData(
        np.array([[0.7, 0.3, 0.0], [0.1, 0.0, 0.9]]), np.array([0, 1]), class_probability=np.array([0.2, 0.8])
    )
    classes, counts = data.sample_counts(4000, 101, np.random.default_rng(0))
    assert (classes == 1).mean() == pytest.approx(0.8, abs=0.02)
    for n in range(2):
        found = counts[classes == n].mean(axis=0) / 100
        np.testing.assert_allclose(found, data.conditional[n], atol=0.01)
        # multinomial, not just the right mean
        variance = counts[classes == n, 0].var() / 100
        p = data.conditional[n, 0]
        assert variance == pytest.approx(p * (1 - p), rel=0.15)


def test_sequences_have_the_counts_law_and_end_in_the_last_token():
    data = graded_tokens(last_tokens=2, next_per_last=2, common=2, distinct=2)
    classes, sequences = data.sample_sequences(3000, 33, np.random.default_rng(1))
    assert sequences.shape == (3000, 33)
    assert (sequences[:, -1] == data.contextual_tokens + data.last_of_next[classes]).all()
    frequencies = np.stack(
        [
            np.bincount(sequences[classes == n, :-1].ravel(), minlength=data.contextual_tokens)
            for n in range(4)
        ]
    )
    np.testing.assert_allclose(
        frequencies / frequencies.sum(axis=1, keepdims=True), data.conditional, atol=0.015
    )


ROWS = np.array([[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NextTokenData(np.array([[0.5, 0.4]]), np.array([0])), "row 0 of conditional sums to 0.9"),
        (lambda: NextTokenData(np.array([[1.5, -0.5]]), np.array([0])), r"conditional\[0, 1\] = -0.5"),
        (lambda: NextTokenData(np.array([[np.nan, 1.0]]), np.array([0])), "is not a probability"),
        (lambda: NextTokenData(np.ones(2) / 2, np.array([0])), "one row of probabilities"),
        (lambda: NextTokenData(ROWS, np.array([0])), "one whole number for each of the 2"),
        (lambda: NextTokenData(ROWS, np.array([0.0, 1.0])), "whole number"),
        (lambda: NextTokenData(ROWS, np.array([0, 2])), "without a gap"),
        (lambda: NextTokenData(ROWS, np.array([0, 1]), outputs=1), "outputs = 1"),
        (
            lambda: NextTokenData(ROWS, np.array([0, 1]), class_probability=np.array([1.0])),
            "1 entries for 2 next tokens",
        ),
        (
            lambda: NextTokenData(ROWS, np.array([0, 1]), class_probability=np.array([0.5, 0.6])),
            "class_probability sums to 1.1",
        ),
        (
            lambda: NextTokenData.from_pairs({("a", "x"): [1.0], ("b", "x"): [1.0]}),
            "next token 'x' follows both 'a' and 'b'",
        ),
        (
            lambda: NextTokenData.from_pairs({("a", "x"): [1.0], ("b", "y"): [0.5, 0.5]}),
            "over the same tokens",
        ),
        (lambda: graded_tokens(distinct=0), "distinct = 0; a next token without"),
        (lambda: graded_tokens(common=-1), "common = -1"),
        (lambda: graded_tokens(distinct_weights=(0.0, 1.0)), "must be positive"),
        (lambda: graded_tokens().sample_counts(0, 5, np.random.default_rng()), "0 sequences of length 5"),
        (lambda: graded_tokens().sample_sequences(3, 1, np.random.default_rng()), "length 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()

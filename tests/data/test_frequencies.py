from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.data.frequencies import as_frequencies, drive, random_classes, sample_sentences, smooth_classes


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 1000))
def test_both_data_sets_are_distributions_and_repeat_with_their_seed(classes, distinct, common, seed):
    for x in (
        smooth_classes(classes, distinct=distinct, common=common, seed=seed),
        random_classes(classes, tokens=distinct + common, seed=seed),
    ):
        assert x.shape == (classes, distinct + common)
        assert (x >= 0).all()
        np.testing.assert_allclose(x.sum(axis=1), 1)
    again = smooth_classes(classes, distinct=distinct, common=common, seed=seed)
    np.testing.assert_array_equal(smooth_classes(classes, distinct=distinct, common=common, seed=seed), again)


def test_the_smooth_bump_wanders_with_the_class_and_neighbours_are_alike():
    x = smooth_classes(20, seed=3)
    assert (np.diff(x[:, :10].argmax(axis=1)) >= 0).all()
    bump = x[:, :10] / x[:, :10].max(axis=1, keepdims=True)
    np.testing.assert_allclose(bump[6], np.exp(-((np.arange(10) - 3.0) ** 2) / 30))
    neighbours = np.abs(np.diff(bump, axis=0)).mean()
    assert neighbours < 0.2 * np.abs(bump[0] - bump[-1]).mean()
    chance = random_classes(20, seed=3)
    assert np.abs(np.diff(chance, axis=0)).mean() > 0.8 * np.abs(chance[:-5] - chance[5:]).mean()


def test_sentences_have_the_frequencies_of_their_class():
    x = random_classes(3, tokens=4, seed=1)
    sentences, labels = sample_sentences(x, length=50, per_class=400, seed=2)
    assert sentences.shape == (1200, 4)
    np.testing.assert_allclose(sentences.sum(axis=1), 1)
    means = np.stack([sentences[labels == y].mean(axis=0) for y in range(3)])
    np.testing.assert_allclose(means, x, atol=4 * np.sqrt(0.25 / (400 * 50)))


def test_drive_is_the_mean_of_gradient_times_frequency():
    rng = np.random.default_rng(0)
    x, g, p = rng.dirichlet(np.ones(4), 5), rng.normal(size=(5, 2)), rng.dirichlet(np.ones(5))
    np.testing.assert_allclose(drive(x, g, p), np.einsum("i,ik,il->kl", p, g, x))
    np.testing.assert_allclose(drive(x, g), np.einsum("ik,il->kl", g, x) / 5)


@pytest.mark.parametrize(
    ("frequencies", "words"),
    [
        ([[0.5, 0.5], [1.2, -0.2]], "class 1 has a negative probability"),
        ([[0.5, 0.5], [0.5, 0.6]], "class 1 does not sum to 1"),
        ([[0.5, float("nan")]], "class 0 holds a value that is not finite"),
        ([0.5, 0.5], "must be"),
        ([["a"]], "no array of numbers"),
        ([[[0.5, 0.5]], [[0.2, 0.2]]], r"class \(1, 0\) does not sum"),
    ],
)
def test_wrong_frequencies_are_refused_by_name(frequencies, words):
    with pytest.raises(InputError, match=words):
        as_frequencies(frequencies)


def test_counts_are_normalised_on_request_but_not_empty_ones():
    np.testing.assert_allclose(as_frequencies([[1, 3], [2, 2]], normalise=True), [[0.25, 0.75], [0.5, 0.5]])
    with pytest.raises(InputError, match="class 1 has no tokens"):
        as_frequencies([[1, 3], [0, 0]], normalise=True)
    with pytest.raises(InputError, match="classes = 0"):
        smooth_classes(0)
    with pytest.raises(InputError, match="differ in the number of samples"):
        drive(np.ones((3, 2)), np.ones((4, 2)))

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from joma.instruments.neurons.meaning import embedding_matrix, fold_case, relatedness


def test_case_and_blanks_aside() -> None:
    words = [" At", "at", "In", "\n", " ", " AT", "in "]
    same = fold_case(np.arange(7), lambda number: words[number])
    assert same.tolist() == [0, 0, 2, 3, 4, 0, 2]


def test_ids_that_do_not_occur_stand_for_themselves() -> None:
    assert fold_case(np.asarray([2, 4]), lambda number: "same").tolist() == [0, 1, 2, 3, 2]


def test_embedding_matrix_of_the_only_embedding() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    np.testing.assert_array_equal(embedding_matrix(model), model[0].weight.detach())
    assert embedding_matrix(nn.Linear(2, 2)) is None


def made_up(related: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """40 neurons of two patterns of 3 contexts; a pattern attends to one word of a cloud of meaning."""
    random = np.random.default_rng(0)
    centre = random.normal(size=(80, 16))
    embedding = np.repeat(centre, 5, axis=0) + 0.2 * random.normal(size=(400, 16))
    tokens = np.empty((40, 7, 2), dtype=np.int64)
    for neuron in range(40):
        for context in range(7):
            second = context >= 3
            cloud = 2 * neuron + (0 if related else second)
            word = 5 * cloud + (1 + second if related else 0)
            tokens[neuron, context] = [word, random.integers(400)]
    weights = np.tile([1.0, 0.1], (40, 7, 1))
    pattern = np.tile([0, 0, 0, 1, 1, 1, -1], (40, 1))
    return tokens, weights, pattern, embedding.astype(np.float32)


def test_patterns_related_in_meaning_are_told_from_unrelated_ones() -> None:
    random = np.random.default_rng(1)
    alike, p = relatedness(*made_up(related=True), random=random)
    assert alike.min() > 0.6
    assert (p < 0.05).mean() > 0.9
    other, q = relatedness(*made_up(related=False), random=random)
    assert abs(other.mean()) < 0.2
    assert 0.3 < q.mean() < 0.7
    assert (q < 0.05).mean() < 0.2


def test_relatedness_is_the_cosine_of_weighted_means() -> None:
    tokens, weights, pattern, embedding = made_up(related=False)
    found, _ = relatedness(tokens, weights, pattern, embedding, random=np.random.default_rng(2))
    means = []
    for neuron in range(40):
        for number in range(2):
            total, size = np.zeros(16), 0.0
            for context in range(7):
                if pattern[neuron, context] == number:
                    for token, weight in zip(tokens[neuron, context], weights[neuron, context], strict=True):
                        total += weight * embedding[token]
                        size += weight
            means.append(total / size)
    centred = np.asarray(means) - np.mean(means, axis=0)
    a, b = centred[0], centred[1]
    assert found[0] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)


def test_one_neuron_has_nothing_to_compare_with() -> None:
    tokens, weights, pattern, embedding = made_up(related=True)
    one, p = relatedness(tokens[:1], weights[:1], pattern[:1], embedding, random=np.random.default_rng(0))
    assert np.isnan(one).all()
    assert np.isnan(p).all()


def test_meta_weights_are_no_embedding() -> None:
    with torch.device("meta"):
        assert embedding_matrix(nn.Embedding(3, 2)) is None

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.data.latent_tree import HiddenTree, sequences_from_leaves
from joma.errors import InputError
from joma.theory.latent_tree import LatentTree


def random_tree(seed: int, nodes: int = 7, classes: int = 3) -> HiddenTree:
    """Any shape, the nodes in a shuffled order, some edges deterministic."""
    random = np.random.default_rng(seed)
    parents = np.array([-1, *(random.integers(-1, node) for node in range(1, nodes))])
    names = random.permutation(nodes)
    shuffled = np.empty(nodes, dtype=np.int64)
    shuffled[names] = np.where(parents < 0, -1, names[parents])
    edges = random.choice([-1.0, 1.0, 0.0, 0.3, -0.6, 0.9], size=nodes)
    zero = random.choice([0.0, 1.0, 0.2, 0.7], size=((parents < 0).sum(), classes))
    prior = random.dirichlet(np.ones(classes))
    return HiddenTree(class_probabilities=prior, parents=shuffled, correlations=edges, zero_given_class=zero)


def enumerated(tree: HiddenTree) -> dict[tuple[int, ...], float]:
    """P[class, y_0, y_1, ...], written from the definition."""
    prior, parents = np.asarray(tree.class_probabilities), np.asarray(tree.parents)
    edges, zero = np.asarray(tree.correlations), np.asarray(tree.zero_given_class)
    table = {}
    for state in product(range(len(prior)), *[(0, 1)] * tree.nodes):
        label, values = state[0], state[1:]
        probability, top = prior[label], 0
        for node, parent in enumerate(parents):
            if parent < 0:
                p = zero[top, label]
                probability *= p if values[node] == 0 else 1 - p
                top += 1
            else:
                probability *= (1 + edges[node] * (1 if values[node] == values[parent] else -1)) / 2
        table[state] = probability
    return table


@given(st.integers(0, 10_000), st.data())
def test_posteriors_against_enumeration(seed: int, data: st.DataObject) -> None:
    tree = random_tree(seed)
    table = enumerated(tree)
    evidence = data.draw(st.dictionaries(st.integers(0, 6), st.integers(0, 1), max_size=4))
    label = data.draw(st.none() | st.integers(0, 2))
    fits = {
        s: p
        for s, p in table.items()
        if all(s[node + 1] == v for node, v in evidence.items()) and label in (None, s[0])
    }
    total = sum(fits.values())
    np.testing.assert_allclose(tree.joint_probability(evidence, class_label=label), total, atol=1e-13)
    if total == 0:
        with pytest.raises(InputError, match="probability 0"):
            tree.given(evidence, class_label=label)
        return
    found = tree.given(evidence, class_label=label)
    for node in range(7):
        one = sum(p for s, p in fits.items() if s[node + 1] == 1) / total
        np.testing.assert_allclose(found.of_one[node], one, atol=1e-12)
    for k in range(3):
        of_k = sum(p for s, p in fits.items() if s[0] == k) / total
        np.testing.assert_allclose(found.of_class[k], of_k, atol=1e-12)


def test_it_is_the_theorys_tree() -> None:
    theory = LatentTree.uniform(
        class_probabilities=[0.2, 0.8],
        zero_given_class=[[0.3, 0.9], [0.6, 0.1]],
        children=3,
        depth=3,
        edge_correlation=0.7,
    )
    tree = HiddenTree.from_theory(theory)
    np.testing.assert_array_equal(tree.leaves, theory.leaves)
    np.testing.assert_allclose(tree.given().of_one, (1 - theory.means) / 2, atol=1e-13)
    together = theory.cooccurrence()
    for column, leaf in enumerate(tree.leaves):
        np.testing.assert_allclose(tree.given({leaf: 1}).of_one[tree.leaves], together[:, column], atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_samples_have_the_exact_frequencies(seed: int) -> None:
    tree = random_tree(seed, nodes=5)
    count = 200_000
    labels, values = tree.sample(count, np.random.default_rng(seed), every_node=True)
    states, found = np.unique(np.column_stack([labels, values]), axis=0, return_counts=True)
    exact = enumerated(tree)
    expected = np.array([exact[tuple(int(v) for v in s)] for s in states])
    assert (expected > 0).all()
    deviation = (found / count - expected) / np.sqrt(expected * (1 - expected) / count + 1e-12)
    assert np.abs(deviation).max() < 5
    again = tree.sample(count, np.random.default_rng(seed))
    assert np.array_equal(again[1], values[:, tree.leaves])


def test_a_large_tree_and_much_evidence() -> None:
    theory = LatentTree.uniform(
        class_probabilities=[0.5, 0.5],
        zero_given_class=[[1.0, 0.0]],
        children=2,
        depth=17,
        edge_correlation=0.9,
    )
    tree = HiddenTree.from_theory(theory)
    assert tree.nodes == 2**17 - 1
    first = int(tree.leaves[0])
    found = tree.given({first: 1}).of_one[tree.leaves]
    heights = np.array([0, *(int(np.log2(n)) + 1 for n in range(1, 2**16))])
    np.testing.assert_allclose(found, (1 + 0.9 ** (2 * heights)) / 2, atol=1e-12)
    everything = tree.given({int(leaf): 1 for leaf in tree.leaves})
    assert everything.of_class[1] > 0.9
    assert everything.log_evidence < -800  # far below the smallest float64


def test_sequences() -> None:
    values = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    assert sequences_from_leaves(values, length=4).tolist() == [[3, 3, 0, 2], [3, 3, 3, 3], [3, 0, 1, 2]]
    with pytest.raises(InputError, match="sample 2 has 3 tokens, more than length L = 2"):
        sequences_from_leaves(values, length=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents": [-1, 2, 1]}, r"2 nodes never reach the class label: a cycle .* node 1"),
        ({"parents": [-1, 1, 0]}, "a cycle holds or lies above node 1"),
        ({"parents": [-1, 0, 7]}, "node 2 is an orphan: its parent 7"),
        ({"parents": [-1, -2, 0]}, "node 1 is an orphan"),
        ({"parents": [-1.0, 0.0, 0.0]}, "whole number"),
        ({"correlations": [1, 0.5, 1.5]}, r"correlation 1.5 of node 2 is outside"),
        ({"correlations": [1, np.nan, 0]}, r"correlation nan of node 1"),
        ({"zero_given_class": [[0.5, 1.2]]}, "between 0 and 1"),
        ({"zero_given_class": [[0.5]]}, r"\(1, 2\): nodes below"),
        ({"class_probabilities": [0.5, 0.6]}, "sum to one"),
    ],
)
def test_bad_trees(change: dict[str, object], message: str) -> None:
    good = {
        "class_probabilities": [0.5, 0.5],
        "parents": [-1, 0, 0],
        "correlations": [1, 0.5, 0.5],
        "zero_given_class": [[0.1, 0.9]],
    }
    tree = HiddenTree(**good)
    with pytest.raises(InputError, match=message):
        HiddenTree(**{**good, **change})
    with pytest.raises(InputError, match=r"evidence 3: 1"):
        tree.given({3: 1})
    with pytest.raises(InputError, match="class 2 is not"):
        tree.given(class_label=2)
    with pytest.raises(InputError, match="count = -1"):
        tree.sample(-1, np.random.default_rng(0))

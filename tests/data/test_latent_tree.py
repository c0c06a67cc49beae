from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.data.latent_tree import HiddenTree, sequences_from_leaves
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
            tree.posterior(evidence, class_label=label)
        return
    found = tree.posterior(evidence, class_label=label)
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
    np.testing.assert_allclose(tree.posterior().of_one, (1 - theory.means) / 2, atol=1e-13)
    together = theory.cooccurrence()
    for column, leaf in enumerate(tree.leaves):
        np.testing.assert_allclose(
            tree.posterior({leaf: 1}).of_one[tree.leaves], together[:, column], atol=1e-12
        )


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
    found = tree.posterior({first: 1}).of_one[tree.leaves]
    heights = np.array([0, *(int(np.log2(n)) + 1 for n in range(1, 2**16))])
    np.testing.assert_allclose(found, (1 + 0.9 ** (2 * heights)) / 2, atol=1e-12)
    everything = tree.posterior({int(leaf): 1 for leaf in tree.leaves})
    assert everything.of_class[1] > 0.9
    assert everything.log_evidence < -800  # far below the smallest float64


def chain(edges: np.ndarray, zero: list[float], prior: list[float]) -> HiddenTree:
    return HiddenTree(
        class_probabilities=prior,
        parents=np.arange(-1, len(edges) - 1),
        correlations=edges,
        zero_given_class=[zero],
    )


def test_a_long_chain_against_its_closed_form() -> None:
    count = 100_000
    random = np.random.default_rng(0)
    edges = random.choice([1.0, 0.9999, -0.9999, -1.0], size=count)
    edges[count // 2 - 20 : count // 2 + 20] = 0.7
    tree = chain(edges, [0.9, 0.2], [0.3, 0.7])
    root = 0.3 * 0.8 + 0.7 * -0.6  # E[s_0], s = 1 for value 0 and -1 for value 1
    means = root * np.concatenate([[1.0], np.cumprod(edges[1:])])
    np.testing.assert_allclose(tree.posterior().of_one, (1 - means) / 2, atol=1e-12)
    assert tree.posterior().log_evidence == pytest.approx(0, abs=1e-12)
    # Given the last value e: P[e | s_i] = (1 + e c s_i) / 2, c the product of the correlations below i.
    below = np.concatenate([np.cumprod(edges[:0:-1])[::-1], [1.0]])
    for value, sign in ((0, 1.0), (1, -1.0)):
        found = tree.posterior({count - 1: value})
        expected = (means + sign * below) / (1 + sign * below * means)
        np.testing.assert_allclose(found.of_one, (1 - expected) / 2, atol=1e-12)
        assert found.log_evidence == pytest.approx(np.log((1 + sign * means[-1]) / 2), abs=1e-12)
    # A value in the middle cuts the chain in two.
    middle = count // 2
    found = tree.posterior({middle: 1, count - 1: 0})
    upper = (means[:middle] - below[:middle] / below[middle]) / (
        1 - below[:middle] / below[middle] * means[:middle]
    )
    np.testing.assert_allclose(found.of_one[:middle], (1 - upper) / 2, atol=1e-12)


def node_by_node(tree: HiddenTree, evidence: dict[int, int]) -> tuple[np.ndarray, np.ndarray, float]:
    """Pearl's messages in plain probabilities, one node after the other (no edge of correlation 1)."""
    parents, edges = np.asarray(tree.parents).tolist(), np.asarray(tree.correlations).tolist()
    prior, zero = np.asarray(tree.class_probabilities), np.asarray(tree.zero_given_class)
    order = np.concatenate(tree.levels).tolist()
    own = [[1.0, 1.0] for _ in parents]
    for node, value in evidence.items():
        own[node][1 - value] = 0.0
    told: list[tuple[float, float]] = [(1.0, 1.0)] * len(parents)
    log_evidence, roots = 0.0, [node for node, above in enumerate(parents) if above < 0]
    for node in reversed(order):
        a, b = own[node]
        log_evidence += np.log(a + b)
        own[node] = [a / (a + b), b / (a + b)]
        if parents[node] >= 0:
            stay = (1 + edges[node]) / 2
            a, b = own[node]
            told[node] = (stay * a + (1 - stay) * b, stay * b + (1 - stay) * a)
            above = own[parents[node]]
            above[0] *= told[node][0]
            above[1] *= told[node][1]
    given_label = np.array([zero[i] * own[r][0] + (1 - zero[i]) * own[r][1] for i, r in enumerate(roots)])
    of_label = prior * given_label.prod(0)
    from_above: list[tuple[float, float]] = [(1.0, 1.0)] * len(parents)
    for i, root in enumerate(roots):
        others = of_label / given_label[i]
        from_above[root] = (float(others @ zero[i]), float(others @ (1 - zero[i])))
    one = np.empty(len(parents))
    for node in order:
        if parents[node] >= 0:
            above, stay = parents[node], (1 + edges[node]) / 2
            a = from_above[above][0] * own[above][0] / told[node][0]
            b = from_above[above][1] * own[above][1] / told[node][1]
            a, b = a / (a + b), b / (a + b)
            from_above[node] = (stay * a + (1 - stay) * b, stay * b + (1 - stay) * a)
        a, b = from_above[node][0] * own[node][0], from_above[node][1] * own[node][1]
        one[node] = b / (a + b)
    return one, of_label / of_label.sum(), log_evidence + np.log(of_label.sum())


@pytest.mark.parametrize("shape", ["chain", "caterpillar", "random", "forest"])
def test_many_nodes_of_any_shape_against_one_node_after_the_other(shape: str) -> None:
    count = 100_000 if shape == "chain" else 20_000
    random, node = np.random.default_rng(1), np.arange(count)
    parents = {
        "chain": node - 1,
        "caterpillar": np.where(node % 2 == 1, node - 1, node - 2),
        "random": random.integers(0, np.maximum(node, 1)),
        "forest": random.integers(np.maximum(node - 4, -1), node),
    }[shape]
    parents[0] = -1
    names = random.permutation(count)
    shuffled = np.empty(count, dtype=np.int64)
    shuffled[names] = np.where(parents < 0, -1, names[parents])
    tree = HiddenTree(
        class_probabilities=[0.2, 0.5, 0.3],
        parents=shuffled,
        correlations=random.uniform(-0.95, 0.95, size=count),
        zero_given_class=random.uniform(0.1, 0.9, size=((parents < 0).sum(), 3)),
    )
    seen = random.choice(count, size=count // 50, replace=False)
    evidence = {int(n): int(v) for n, v in zip(seen, random.integers(0, 2, seen.size), strict=True)}
    found, (one, label, log_evidence) = tree.posterior(evidence), node_by_node(tree, evidence)
    np.testing.assert_allclose(found.of_one, one, atol=1e-12)
    np.testing.assert_allclose(found.of_class, label, atol=1e-12)
    assert found.log_evidence == pytest.approx(log_evidence, rel=1e-12)


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
        ({"parents": np.zeros(0, dtype=int), "correlations": []}, "no node hangs from the class label"),
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
        tree.posterior({3: 1})
    with pytest.raises(InputError, match="class 2 is not"):
        tree.posterior(class_label=2)
    with pytest.raises(InputError, match="count = -1"):
        tree.sample(-1, np.random.default_rng(0))

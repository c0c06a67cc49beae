from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.core.errors import InputError
from joma.theory import class_labels
from joma.theory import latent_tree as tree

CORRELATION = st.floats(-1, 1)


def enumerate_pairs(model: tree.LatentTree) -> np.ndarray:
    """P[y_i = 1, y_j = 1] by summing over every state of every latent: knows nothing of signs or paths."""
    prior = np.asarray(model.class_probabilities)
    zero = np.atleast_2d(model.zero_given_class)
    rho = np.asarray(model.correlations)
    both = np.zeros((model.nodes, model.nodes))
    for label, state in itertools.product(range(len(prior)), itertools.product((0, 1), repeat=model.nodes)):
        probability = prior[label]
        for node, value in enumerate(state):
            if node < len(zero):
                probability *= zero[node, label] if value == 0 else 1 - zero[node, label]
            else:
                parent = model.parents[node - len(zero)]
                probability *= (1 + rho[node - len(zero)] * (1 if value == state[parent] else -1)) / 2
        both += probability * np.outer(state, state)
    return both


def enumerate_exactly(
    depth: int, height: int, rho: Fraction, prior: list[Fraction], zero: list[Fraction]
) -> Fraction:
    """Theorem 5's probability in rational numbers, over all latents on the two paths."""
    stay = (1 + rho) / 2
    trunk, both, one = depth - height, Fraction(0), Fraction(0)
    for states in itertools.product((0, 1), repeat=trunk + 2 * height):
        above, left, right = states[:trunk], states[trunk : trunk + height], states[trunk + height :]
        probability = sum(
            (p * (q if above[0] == 0 else 1 - q) for p, q in zip(prior, zero, strict=True)), Fraction(0)
        )
        for chain in (above, (above[-1], *left), (above[-1], *right)):
            for a, b in itertools.pairwise(chain):
                probability *= stay if a == b else 1 - stay
        one += probability * right[-1]
        both += probability * right[-1] * left[-1]
    return both / one


@given(CORRELATION, CORRELATION)
def test_lemma_8(a: float, b: float) -> None:
    matrix = tree.transition_matrix(a)
    assert np.array_equal(matrix, matrix.T)
    assert matrix @ np.ones(2) == pytest.approx(1)
    assert matrix @ tree.transition_matrix(b) == pytest.approx(tree.transition_matrix(a * b))
    assert matrix @ tree.marginal(b) == pytest.approx(tree.marginal(a * b))


@given(st.lists(CORRELATION, max_size=6))
def test_lemma_9(correlations: list[float]) -> None:
    product = np.eye(2)
    for rho in correlations:
        product = tree.transition_matrix(rho) @ product
    assert product == pytest.approx(tree.transition_matrix(tree.chain_correlation(correlations)))


@given(CORRELATION, CORRELATION, CORRELATION)
def test_pair_distribution_is_equation_94(a: float, b: float, bias: float) -> None:
    direct = tree.transition_matrix(a) @ np.diag(tree.marginal(bias)) @ tree.transition_matrix(b).T
    assert tree.pair_distribution(a, b, bias) == pytest.approx(direct)


@pytest.mark.parametrize(("depth", "height"), [(4, 1), (4, 2), (4, 3), (3, 2), (2, 1)])
def test_theorem_5_is_the_enumeration(depth: int, height: int) -> None:
    prior, zero = (
        [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)],
        [Fraction(9, 10), Fraction(1, 4), Fraction(3, 5)],
    )
    exact = enumerate_exactly(depth, height, Fraction(-7, 10), prior, zero)
    bias = class_labels.root_bias([float(p) for p in prior], [float(q) for q in zero])
    assert tree.cooccurrence(-0.7, bias, depth=depth, ancestor_height=height) == pytest.approx(
        float(exact), rel=1e-14
    )


@pytest.mark.parametrize("name", ["thm5_4_1", "thm5_4_2"])
def test_theorem_5_golden(golden, name: str) -> None:
    entry = golden(name)
    given_ = entry["inputs"]
    bias = class_labels.root_bias(given_["p0"], given_["q"])
    value = tree.cooccurrence(given_["rho"], bias, depth=given_["L"], ancestor_height=given_["H"])
    assert value == pytest.approx(entry["expected"], rel=entry["rtol"])
    printed = class_labels.printed_root_bias(given_["p0"], given_["q"])
    wrong = tree.cooccurrence(given_["rho"], printed, depth=given_["L"], ancestor_height=given_["H"])
    assert abs(wrong - entry["expected"]) > 0.01


def test_sparse_root_golden(golden) -> None:
    entry = golden("thm5_sparse_rho0")
    classes = entry["inputs"]["D"]
    assert class_labels.sparse_root_bias(classes) == pytest.approx(entry["expected"], rel=entry["rtol"])
    own_child = 1.0 - (np.arange(classes) == 3)
    assert class_labels.root_bias(np.full(classes, 1 / classes), own_child) == pytest.approx(
        entry["expected"]
    )


def test_equation_8_golden(golden) -> None:
    entry = golden("eq8_exact")
    depth, height, eps = (entry["inputs"][key] for key in ("L", "H", "eps"))
    value = tree.cooccurrence(1 - eps, 1 - eps, depth=depth, ancestor_height=height)
    assert value == pytest.approx(entry["expected"][0], rel=entry["rtol"])
    slope = tree.cooccurrence_expansion(
        1.0, depth=depth, ancestor_height=height
    ) - tree.cooccurrence_expansion(0.0, depth=depth, ancestor_height=height)
    assert slope == pytest.approx(entry["expected"][1], rel=entry["rtol"])


def test_equation_8_remainder_is_second_order_only_with_the_dropped_term() -> None:
    eps = np.array([1e-2, 1e-3, 1e-4])
    exact = tree.cooccurrence(1 - eps, 1 - eps, depth=9, ancestor_height=2)
    dropped = np.log10(np.abs(exact - (1 - 2 / 9)))
    kept = np.log10(np.abs(exact - tree.cooccurrence_expansion(eps, depth=9, ancestor_height=2)))
    assert np.diff(dropped) == pytest.approx(-1, abs=0.1)
    assert np.diff(kept) == pytest.approx(-2, abs=0.1)


@pytest.mark.parametrize("noise", [2.0**-52, 2.0**-30, 1e-6, 0.3])
def test_theorem_5_keeps_its_digits_near_certainty(noise: float) -> None:
    rho = 1 - noise
    with mpmath.workdps(60):
        r = mpmath.mpf(rho)
        exact = (1 + r**6 - 2 * r**10) / (1 - r**10) / 2
    assert tree.cooccurrence(rho, rho, depth=10, ancestor_height=3) == pytest.approx(float(exact), rel=4e-16)


@given(st.floats(0.01, 0.99), st.floats(-0.99, 0.99), st.integers(3, 12))
def test_nearer_ancestors_mean_more_cooccurrence(rho: float, bias: float, depth: int) -> None:
    values = tree.cooccurrence(rho, bias, depth=depth, ancestor_height=np.arange(1, depth))
    assert np.all(np.diff(values) <= 0)


@st.composite
def latent_trees(draw: st.DrawFn) -> tree.LatentTree:
    roots, classes, below = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return tree.LatentTree(
        class_probabilities=random.dirichlet(np.ones(classes)),
        zero_given_class=random.uniform(0, 1, (roots, classes)),
        parents=tuple(int(random.integers(node)) for node in range(roots, roots + below)),
        correlations=random.uniform(-1, 1, below),
    )


@given(latent_trees())
def test_any_tree_is_the_enumeration(model: tree.LatentTree) -> None:
    both = enumerate_pairs(model)
    one = np.diag(both)
    everyone = np.arange(model.nodes)
    assert model.cooccurrence(everyone) == pytest.approx(both / one[None, :], abs=1e-12)
    for first, second in itertools.combinations(everyone, 2):
        joint = model.joint(first, second)
        assert joint[1, 1] == pytest.approx(both[first, second], abs=1e-14)
        assert joint.sum() == pytest.approx(1)
        assert joint[1].sum() == pytest.approx(one[first])


def test_uniform_tree_agrees_with_theorem_5_at_every_height() -> None:
    prior, zero = [0.5, 0.3, 0.2], [0.9, 0.25, 0.6]
    model = tree.LatentTree.uniform(
        class_probabilities=prior, zero_given_class=[zero], children=2, depth=4, edge_correlation=0.8
    )
    table = model.cooccurrence()
    assert table.shape == (8, 8)
    for height, token in ((1, 1), (2, 2), (3, 7)):
        law = tree.cooccurrence(0.8, class_labels.root_bias(prior, zero), depth=4, ancestor_height=height)
        assert table[0, token] == pytest.approx(float(law))


def test_across_the_root() -> None:
    classes = 5
    model = tree.LatentTree.uniform(
        class_probabilities=np.full(classes, 1 / classes),
        zero_given_class=1.0 - np.eye(classes),
        children=1,
        depth=3,
        edge_correlation=0.6,
    )
    enumerated = enumerate_pairs(
        tree.LatentTree(  # two of the five branches: the others do not touch the pair
            class_probabilities=np.full(classes, 1 / classes),
            zero_given_class=(1.0 - np.eye(classes))[:2],
            parents=(0, 2, 1, 4),
            correlations=np.full(4, 0.6),
        )
    )
    law = tree.cooccurrence_across_root(0.6, class_labels.sparse_root_bias(classes), 1 - 4 / classes, depth=3)
    assert law == pytest.approx(enumerated[3, 5] / enumerated[5, 5], rel=1e-13)
    assert model.cooccurrence()[0, 1] == pytest.approx(float(law), rel=1e-13)
    # At depth one there is no edge below the root's children: the pair itself, never together.
    assert tree.cooccurrence_across_root(0.0, 1 - 2 / 5, 1 - 4 / 5, depth=1) == pytest.approx(0, abs=1e-15)


def test_arguments_broadcast() -> None:
    values = tree.cooccurrence(
        np.array([0.2, 0.8])[:, None], 0.5, depth=5, ancestor_height=np.array([1, 2, 3])
    )
    assert values.shape == (2, 3)
    assert values[1, 2] == tree.cooccurrence(0.8, 0.5, depth=5, ancestor_height=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tree.transition_matrix(1.2), r"1\.2 is outside \[-1, 1\]"),
        (lambda: tree.marginal(float("nan")), r"nan is outside \[-1, 1\]"),
        (lambda: tree.cooccurrence(-1.01, 0.5, depth=4, ancestor_height=1), r"outside \[-1, 1\]"),
        (lambda: tree.cooccurrence(0.5, 0.5, depth=4, ancestor_height=4), r"1 <= H <= L - 1"),
        (lambda: tree.cooccurrence(0.5, 0.5, depth=4, ancestor_height=0), r"1 <= H <= L - 1"),
        (lambda: tree.cooccurrence(0.5, 0.5, depth=4, ancestor_height=1.5), "whole number"),
        (lambda: tree.cooccurrence(1.0, 1.0, depth=4, ancestor_height=1), "never appears"),
        (lambda: tree.cooccurrence_expansion(-0.1, depth=4, ancestor_height=1), "at least 0"),
        (lambda: tree.cooccurrence_expansion(0.1, depth=4, ancestor_height=5), r"not in 1\.\.L-1"),
        (lambda: tree.cooccurrence_across_root(0.5, 0.9, 0.1, depth=4), "no binary pair"),
        (lambda: tree.cooccurrence_across_root(0.5, 0.1, 0.1, depth=0), "at least one edge"),
        (lambda: class_labels.root_bias([0.5, 0.6], [0.1, 0.1]), r"sum to 1\.1"),
        (lambda: class_labels.root_bias([1.5, -0.5], [0.1, 0.1]), "non-negative"),
        (lambda: class_labels.root_bias([0.5, 0.5], [0.1]), "one number per class"),
        (lambda: class_labels.root_bias([0.5, 0.5], [0.1, 1.1]), "between 0 and 1"),
        (lambda: class_labels.sparse_root_bias(0), "at least one"),
        (
            lambda: tree.LatentTree(
                class_probabilities=[1.0], zero_given_class=[[0.5]], parents=(1,), correlations=[0.1]
            ),
            "parent 1 of node 1",
        ),
        (
            lambda: tree.LatentTree(
                class_probabilities=[1.0], zero_given_class=[[0.5]], parents=(0,), correlations=[]
            ),
            "one correlation per parent",
        ),
        (
            lambda: tree.LatentTree(
                class_probabilities=[1.0], zero_given_class=[[1.0], [0.5]]
            ).cooccurrence(),
            "token 0 never appears",
        ),
        (
            lambda: tree.LatentTree(class_probabilities=[1.0], zero_given_class=[[0.5]]).joint(0, 1),
            "node 1 is not one of",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()

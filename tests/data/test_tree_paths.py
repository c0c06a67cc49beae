from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joma.data.tree_paths import (
    apply,
    compose,
    cut,
    depths,
    normalise_logs,
    products_before,
    products_to_the_end,
)


def random_forest(seed: int, nodes: int, reach: int) -> np.ndarray:
    """Parents of a forest, deep where ``reach`` is small, its nodes in a shuffled order."""
    random = np.random.default_rng(seed)
    parents = np.array([random.integers(max(-1, node - reach), node) for node in range(nodes)])
    names = random.permutation(nodes)
    shuffled = np.empty(nodes, dtype=np.int64)
    shuffled[names] = np.where(parents < 0, -1, names[parents])
    return shuffled


forests = st.builds(random_forest, st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 40))


@given(forests)
def test_depths_and_paths(parents: np.ndarray) -> None:
    depth = depths(parents)
    for node in range(len(parents)):
        steps, above = 0, node
        while above >= 0:
            steps, above = steps + 1, parents[above]
        assert depth[node] == steps
    paths = cut(parents, depth)
    assert sorted(paths.nodes) == list(range(len(parents)))
    size = np.ones(len(parents), dtype=int)
    for node in np.argsort(-depth):
        if parents[node] >= 0:
            size[parents[node]] += size[node]
    rank_of = np.concatenate([np.full(r.stop - r.start, i) for i, r in enumerate(paths.ranks)])
    assert len(rank_of) == len(parents)
    for slot, node in enumerate(paths.nodes):
        above = paths.parent[slot]
        assert (paths.nodes[above] if above >= 0 else -1) == parents[node]
        if paths.place[slot]:
            # On a path each node follows its parent, of whose children it has the largest subtree.
            assert above == slot - 1
            assert size[node] == size[parents == parents[node]].max()
            assert paths.remaining[slot] == paths.remaining[above] - 1
        else:
            assert rank_of[slot] == (rank_of[above] + 1 if above >= 0 else 0)
        if not paths.remaining[slot]:
            assert node not in parents
    assert len(paths.ranks) <= np.log2(len(parents)) + 1


def test_a_cycle_has_no_depth() -> None:
    assert depths(np.array([-1, 2, 1, 0, 2])).tolist() == [1, 0, 0, 2, 0]
    assert depths(np.array([0])).tolist() == [0]


@pytest.mark.parametrize("shape", ["chain", "caterpillar", "broom", "binary", "star", "random"])
def test_few_ranks_whatever_the_shape(shape: str) -> None:
    count = 100_000
    node = np.arange(count)
    parents = {
        "chain": node - 1,
        "caterpillar": np.where(node % 2 == 1, node - 1, node - 2),
        "broom": np.where(node < count // 2, node - 1, count // 2 - 1),
        "binary": (node - 1) // 2,
        "star": np.zeros(count, dtype=int),
        "random": np.random.default_rng(0).integers(0, np.maximum(node, 1)),
    }[shape]
    parents[0] = -1
    paths = cut(parents, depths(parents))
    assert len(paths.ranks) <= 17
    if shape in ("chain", "caterpillar", "broom", "star"):
        assert len(paths.ranks) <= 2


@given(forests, st.integers(0, 1000))
def test_products_along_paths(parents: np.ndarray, seed: int) -> None:
    paths = cut(parents, depths(parents))
    random = np.random.default_rng(seed)
    matrices = random.choice([0.0, 0.2, 1.0, 3.0], size=(len(parents), 2, 2))
    with np.errstate(divide="ignore"):
        logs, scale = normalise_logs(np.log(matrices))
    found, set_aside = products_to_the_end(logs, scale, paths.remaining)
    before = products_before(logs, paths.place)
    for slot in range(len(parents)):
        rest = [matrices[s] for s in range(slot, slot + paths.remaining[slot] + 1)]
        expected = np.linalg.multi_dot([np.eye(2), *rest])
        np.testing.assert_allclose(np.exp(found[slot] + set_aside[slot]), expected, rtol=1e-12)
        first = [matrices[s] for s in range(slot - paths.place[slot], slot)]
        expected = np.linalg.multi_dot([np.eye(2), np.eye(2), *first])
        np.testing.assert_allclose(np.exp(before[slot]), expected / (expected.max() or 1), rtol=1e-12)


def test_small_products() -> None:
    random = np.random.default_rng(0)
    left, right, vectors = random.random((3, 2, 2)), random.random((3, 2, 2)), random.random((3, 2))
    np.testing.assert_allclose(np.exp(compose(np.log(left), np.log(right))), left @ right)
    np.testing.assert_allclose(
        np.exp(apply(np.log(vectors), np.log(left))), np.einsum("sa,sab->sb", vectors, left)
    )
    nothing, set_aside = normalise_logs(np.full((1, 2), -np.inf))
    assert np.isneginf(nothing).all()
    assert set_aside == 0

"""Uniform trees HBLT(rho) as the experiments use them: built, sampled, enumerated, and their heights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.core.errors import InputError
from joma.theory.latent_tree import LatentTree

States = NDArray[np.int8]
MOST_ENUMERATED = 22
"""Latents of the largest tree that is enumerated state by state."""


def tree_below_classes(
    *, classes: int, depth: int, edge_correlation: float, children: int = 2, with_all: bool = False
) -> LatentTree:
    """HBLT(rho) below D equally likely classes, each of which triggers one child of its own.

    The tree holds the first child alone (what two tokens below it do does not depend on the others),
    or ``with_all`` all D of them. L = ``depth`` counts edges from the class label to a token.
    """
    triggered = 1 - np.eye(classes)
    return LatentTree.uniform(
        class_probabilities=np.full(classes, 1 / classes),
        zero_given_class=triggered if with_all else triggered[:1],
        children=children,
        depth=depth,
        edge_correlation=edge_correlation,
    )


def sample(tree: LatentTree, count: int, seed: int | Sequence[int]) -> tuple[NDArray[np.int64], States]:
    """``count`` draws from the top down: class labels (count,) and the latents y (count, nodes), 0 or 1."""
    random = np.random.default_rng(seed)
    prior, zero = np.asarray(tree.class_probabilities), np.atleast_2d(np.asarray(tree.zero_given_class))
    labels = random.choice(len(prior), size=count, p=prior)
    values = np.empty((tree.nodes, count), dtype=np.int8)
    values[: len(zero)] = random.random((len(zero), count)) >= zero[:, labels]
    for node, (parent, rho) in enumerate(
        zip(tree.parents, np.asarray(tree.correlations), strict=True), start=len(zero)
    ):
        values[node] = values[parent] ^ (random.random(count) >= (1 + rho) / 2)
    return labels, values.T


def enumerate_states(tree: LatentTree) -> tuple[States, Array]:
    """Every state of the latents (states, nodes) and its probability (states,), classes summed out.

    Raises:
        InputError: a tree of more than ``MOST_ENUMERATED`` latents.
    """
    if tree.nodes > MOST_ENUMERATED:
        raise InputError(
            f"enumerate_states: a tree of {tree.nodes} latents has 2^{tree.nodes} states; "
            f"give one of at most {MOST_ENUMERATED} latents."
        )
    states = (np.arange(2**tree.nodes)[:, None] >> np.arange(tree.nodes)).astype(np.int8) & 1
    prior, zero = np.asarray(tree.class_probabilities), np.atleast_2d(np.asarray(tree.zero_given_class))
    roots = states[:, : len(zero), None]
    probability = np.where(roots == 0, zero, 1 - zero).prod(axis=1) @ prior
    edges = zip(tree.parents, np.asarray(tree.correlations), strict=True)
    for node, (parent, rho) in enumerate(edges, start=len(zero)):
        probability *= np.where(states[:, node] == states[:, parent], (1 + rho) / 2, (1 - rho) / 2)
    return states, probability


def ancestor_heights(leaves: int, children: int = 2) -> NDArray[np.int64]:
    """H of every pair of leaves of one complete tree (leaves, leaves): edges up to the common ancestor."""
    left, right = np.arange(leaves)[:, None], np.arange(leaves)[None, :]
    heights = np.zeros((leaves, leaves), dtype=np.int64)
    while (left != right).any():
        heights += left != right
        left, right = left // children, right // children
    return heights

"""A tree cut into heavy paths, so that what is passed along a tree takes few steps however deep it is.

Every node keeps its child with the largest subtree; the edges kept form paths, and on the way from any node
to the top at most log2(nodes) edges lie between paths (Sleator and Tarjan, 1983). Along all paths of a rank
at once, running products of matrices are taken by halving: neighbours are multiplied, the products of those
half as many are found likewise, and each second one is completed (Blelloch, 1990): O(nodes) products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]


def depths(parents: Nodes) -> Nodes:
    """How many steps each node is from the top, (nodes,): 1 where the parent is -1; 0 where it never ends.

    ``parents``: (nodes,), each -1 or a node. By pointer doubling, O(nodes log depth).
    """
    top = len(parents)
    above = np.append(np.where(parents < 0, top, parents), top)
    steps = np.append(np.ones(top, dtype=np.int64), 0)
    for _ in range(max(1, top).bit_length()):
        steps += steps[above]
        above = above[above]
        if (above == top).all():
            break
    return np.where(above == top, steps, 0)[:-1]


@dataclass(frozen=True, eq=False)
class TreePaths:
    """The nodes in an order in which each path, and each rank of paths, is contiguous (see ``cut``)."""

    nodes: Nodes
    """(nodes,): the node at each slot."""
    parent: Nodes
    """(nodes,): the slot of the parent, -1 at the top."""
    place: Nodes
    """(nodes,): how far along its path a slot is; 0 at the path's head, nearest the top."""
    remaining: Nodes
    """(nodes,): how many slots of the same path come after it."""
    ranks: tuple[slice, ...]
    """The slots of the paths that hang from the top, of those that hang from these, and so on."""


def cut(parents: Nodes, depth: Nodes) -> TreePaths:
    """Cut a tree (``parents`` (nodes,), -1 at the top; its ``depths``) into heavy paths."""
    count = len(parents)
    downwards = np.argsort(depth, kind="stable").tolist()
    above = parents.tolist()
    # Whole numbers, one node after the other: plain lists are quicker than an array operation per level.
    size = [1] * count
    for node in reversed(downwards):
        if above[node] >= 0:
            size[above[node]] += size[node]
    siblings = np.lexsort((np.array(size), parents))
    kept = np.zeros(count, dtype=bool)
    kept[siblings[np.append(np.diff(parents[siblings]) != 0, True)]] = True
    kept &= parents >= 0
    heads, ranks = list(range(count)), [0] * count
    for node, stays in zip(downwards, kept[downwards].tolist(), strict=True):
        if stays:
            heads[node], ranks[node] = heads[above[node]], ranks[above[node]]
        elif above[node] >= 0:
            ranks[node] = ranks[above[node]] + 1
    head, rank = np.array(heads, dtype=np.int64), np.array(ranks, dtype=np.int64)
    nodes = np.lexsort((depth, head, rank))
    slot = np.empty(count, dtype=np.int64)
    slot[nodes] = np.arange(count)
    place = (depth - depth[head])[nodes]
    length = np.bincount(head, minlength=count)[head][nodes]
    ends = np.cumsum(np.bincount(rank)).tolist()
    return TreePaths(
        nodes,
        np.where(parents < 0, -1, slot[parents])[nodes],
        place,
        length - 1 - place,
        tuple(slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)),
    )


def products_to_the_end(matrices: Array, scale: Array, remaining: Nodes) -> tuple[Array, Array]:
    """For each slot the product of its matrix and all that follow on its path, and the log set aside.

    ``matrices``: (slots, 2, 2), logs of non-negative entries; ``scale``: (slots,), log of what each was
    divided by; ``remaining``: (slots,). The products' largest entry is 1 (its log 0), unless all are 0.
    """
    backwards = matrices[::-1].swapaxes(1, 2)
    product, scale = _running_products(backwards, scale[::-1], (remaining == 0)[::-1])
    return product.swapaxes(1, 2)[::-1], scale[::-1]


def products_before(matrices: Array, place: Nodes) -> Array:
    """For each slot the product of the matrices before it on its path, up to a factor; logs (slots, 2, 2)."""
    product, _ = _running_products(matrices, np.zeros(len(matrices)), place == 0)
    before = np.roll(product, 1, axis=0)
    before[place == 0] = UNIT
    return before


def _running_products(matrices: Array, scale: Array, starts: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Products of each matrix with those before it, back to the last slot that ``starts``; normalised."""
    if starts[1:].all():
        return matrices, scale
    product, total = matrices.copy(), scale.copy()
    odd = len(matrices) // 2
    pairs, pair_scale = _continue_path(
        matrices[: 2 * odd : 2], scale[: 2 * odd : 2], matrices[1::2], scale[1::2], starts[1::2]
    )
    pairs, pair_scale = _running_products(pairs, pair_scale, starts[: 2 * odd : 2] | starts[1::2])
    product[1::2], total[1::2] = pairs, pair_scale
    even = len(matrices[2::2])
    product[2::2], total[2::2] = _continue_path(
        pairs[:even], pair_scale[:even], matrices[2::2], scale[2::2], starts[2::2]
    )
    return product, total


def _continue_path(
    left: Array, left_scale: Array, right: Array, right_scale: Array, starts: NDArray[np.bool_]
) -> tuple[Array, Array]:
    """``left`` times ``right``, or ``right`` alone where a path starts there."""
    product, more = normalise_logs(compose(left, right))
    return (
        np.where(starts[:, None, None], right, product),
        np.where(starts, right_scale, left_scale + right_scale + more),
    )


def compose(left: Array, right: Array) -> Array:
    """Logs of the matrix products, (slots, 2, 2) each."""
    result: Array = np.logaddexp(
        left[:, :, 0, None] + right[:, 0, None, :], left[:, :, 1, None] + right[:, 1, None, :]
    )
    return result


def apply(vectors: Array, matrices: Array) -> Array:
    """Logs of the row vectors (slots, 2) times the matrices (slots, 2, 2)."""
    result: Array = np.logaddexp(vectors[:, 0, None] + matrices[:, 0], vectors[:, 1, None] + matrices[:, 1])
    return result


def normalise_logs(logs: Array) -> tuple[Array, Array]:
    """Each row's logs less the largest of them, and that; rows of zeros (all -inf) stay as they are."""
    largest = logs.max(axis=tuple(range(1, logs.ndim)))
    safe = np.where(np.isinf(largest), 0.0, largest)
    return logs - safe.reshape(-1, *[1] * (logs.ndim - 1)), safe


UNIT = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
"""Logs of the unit matrix."""

"""Latent trees of any shape and size: sampled quickly, and their probabilities by message passing.

The distribution is HBLT's (JoMA Def. 1): a class label ``y_0`` with D values has binary children, which
have binary children, down to the leaves, the tokens. A node keeps its parent's value with probability
``(1 + rho) / 2``, rho of its own edge. ``joma.theory.latent_tree.LatentTree`` answers for every
pair at once in O(nodes^2); here any evidence is answered in O(nodes (D + log depth)), for trees
of 10^5 nodes and any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.errors import InputError
from joma.data.tree_paths import (
    UNIT,
    TreePaths,
    apply,
    cut,
    depths,
    normalise_logs,
    products_before,
    products_to_the_end,
)
from joma.theory.latent_tree import LatentTree

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]
CLASS_LABEL = -1
"""The parent of a node that hangs from the class label."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """What ``HiddenTree.given`` computes."""

    log_evidence: float
    """log P[evidence], nats; 0 without evidence."""
    of_class: Array
    """(D,): P[y_0 = k | evidence]."""
    of_one: Array
    """(nodes,): P[y_i = 1 | evidence]."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HiddenTree:
    """A latent tree whose nodes may come in any order.

    Raises:
        InputError: a cycle, a parent that does not exist, no node below the class label, lengths that do
            not match, probabilities outside [0, 1] or not summing to one, correlations outside [-1, 1].
    """

    class_probabilities: ArrayLike
    """(D,): P[y_0 = k]."""
    parents: ArrayLike
    """(nodes,) of whole numbers: each node's parent, or -1 below the class label."""
    correlations: ArrayLike
    """(nodes,): rho of the edge from the parent; unused (give 1) below the class label."""
    zero_given_class: ArrayLike
    """(R, D): P[y_i = 0 | y_0 = k] of the R nodes below the class label, in their order."""

    def __post_init__(self) -> None:
        prior = np.asarray(self.class_probabilities, dtype=np.float64)
        parents = np.asarray(self.parents)
        edges = np.asarray(self.correlations, dtype=np.float64)
        zero = np.atleast_2d(np.asarray(self.zero_given_class, dtype=np.float64))
        if prior.ndim != 1 or not (np.all(prior >= 0) and abs(prior.sum() - 1) <= 1e-9):
            raise InputError(
                f"HiddenTree: class probabilities {prior.tolist()} sum to {prior.sum():.12g}; give "
                "non-negative numbers that sum to one."
            )
        if parents.ndim != 1 or not np.issubdtype(parents.dtype, np.integer) or edges.shape != parents.shape:
            raise InputError(
                f"HiddenTree: parents of shape {parents.shape} ({parents.dtype}) and correlations of shape "
                f"{edges.shape}; give one whole number and one correlation per node."
            )
        if not parents.size:
            raise InputError("HiddenTree: no node hangs from the class label; give at least one parent -1.")
        orphans = np.flatnonzero((parents < CLASS_LABEL) | (parents >= len(parents)))
        if orphans.size:
            node = orphans[0]
            raise InputError(
                f"HiddenTree: node {node} is an orphan: its parent {parents[node]} is neither -1 (the class "
                f"label) nor one of 0..{len(parents) - 1}."
            )
        if not np.all(np.abs(edges) <= 1):
            node = np.flatnonzero(~(np.abs(edges) <= 1))[0]
            raise InputError(f"HiddenTree: correlation {edges[node]} of node {node} is outside [-1, 1].")
        top = int((parents == CLASS_LABEL).sum())
        if zero.shape != (top, prior.size) or not np.all((zero >= 0) & (zero <= 1)):
            raise InputError(
                f"HiddenTree: zero_given_class of shape {zero.shape} with values in "
                f"[{zero.min(initial=np.inf):g}, {zero.max(initial=-np.inf):g}]; give probabilities between "
                f"0 and 1, ({top}, {prior.size}): nodes below the class label by classes."
            )
        for name, value in (
            ("class_probabilities", prior),
            ("parents", parents.astype(np.int64)),
            ("correlations", edges),
            ("zero_given_class", zero),
        ):
            object.__setattr__(self, name, value)
        _ = self._depth  # finds cycles

    @classmethod
    def from_theory(cls, tree: LatentTree) -> Self:
        """The same tree, its nodes numbered as in ``tree``."""
        zero = np.atleast_2d(np.asarray(tree.zero_given_class, dtype=np.float64))
        return cls(
            class_probabilities=tree.class_probabilities,
            zero_given_class=zero,
            parents=np.concatenate([np.full(len(zero), CLASS_LABEL), np.array(tree.parents, dtype=np.int64)]),
            correlations=np.concatenate(
                [np.ones(len(zero)), np.asarray(tree.correlations, dtype=np.float64)]
            ),
        )

    @property
    def nodes(self) -> int:
        """How many latents there are, tokens included, the class label not."""
        return len(self._parents)

    @cached_property
    def leaves(self) -> Nodes:
        """The nodes without children, ascending: the tokens."""
        return np.setdiff1d(np.arange(self.nodes), self._parents)

    @cached_property
    def levels(self) -> tuple[Nodes, ...]:
        """The nodes at distance 1, 2, ... from the class label, each level ascending."""
        order = np.argsort(self._depth, kind="stable")
        return tuple(np.split(order, np.cumsum(np.bincount(self._depth)[1:])[:-1]))

    @cached_property
    def _depth(self) -> Nodes:
        """(nodes,): distance from the class label."""
        depth = depths(self._parents)
        missing = np.flatnonzero(depth == 0)
        if missing.size:
            raise InputError(
                f"HiddenTree: {missing.size} nodes never reach the class label: a cycle holds or lies above "
                f"node {missing[0]}; give every chain of parents an end at -1."
            )
        return depth

    @cached_property
    def _paths(self) -> TreePaths:
        return cut(self._parents, self._depth)

    def sample(
        self, count: int, random: np.random.Generator, *, every_node: bool = False
    ) -> tuple[Nodes, NDArray[np.bool_]]:
        """Class labels (count,) and the values of the leaves (count, leaves), or of every node.

        The values are a transposed view: contiguous along the samples of one node.

        Raises:
            InputError: a negative count.
        """
        if count < 0:
            raise InputError(f"HiddenTree.sample: count = {count}; give a number of at least 0.")
        labels = random.choice(len(self._prior), size=count, p=self._prior / self._prior.sum())
        values = np.empty((self.nodes, count), dtype=bool)
        for number, nodes in enumerate(self.levels):
            chance = random.random((nodes.size, count), dtype=np.float32 if number else np.float64)
            if number == 0:
                values[nodes] = chance >= self._zero[:, labels]
            else:
                flips = chance < ((1 - self._edges[nodes]) / 2)[:, None]
                values[nodes] = values[self._parents[nodes]] ^ flips
        return labels, (values if every_node else values[self.leaves]).T

    def posterior(
        self, evidence: Mapping[int, int] | None = None, *, class_label: int | None = None
    ) -> Posterior:
        """Every node's and the class's probability given ``evidence`` (node -> 0 or 1) and the class.

        Exact, by messages up and down the tree (Pearl's belief propagation), passed along whole paths at
        once (``joma.data.tree_paths``), so that a chain of 10^5 nodes takes little longer than a bushy
        tree. In logarithms, so that the evidence of many nodes does not underflow; a factor 0 is counted
        apart.

        Raises:
            InputError: a node or value that does not exist, or evidence of probability 0.
        """
        local = np.zeros((self.nodes, 2))
        for node, value in (evidence or {}).items():
            if not 0 <= node < self.nodes or value not in (0, 1):
                raise InputError(
                    f"HiddenTree.given: evidence {node}: {value}; give nodes of 0..{self.nodes - 1} "
                    "and values 0 or 1."
                )
            local[node, 1 - value] = -np.inf
        with np.errstate(divide="ignore"):
            label = np.log(self._prior)
            top = np.log(np.stack([self._zero, 1 - self._zero], axis=-1))
            stay, flip = np.log((1 + self._edges) / 2), np.log((1 - self._edges) / 2)
        if class_label is not None:
            if not 0 <= class_label < len(label):
                raise InputError(f"HiddenTree.given: class {class_label} is not one of 0..{len(label) - 1}.")
            label = np.where(np.arange(len(label)) == class_label, label, -np.inf)

        # From here on in the order of the paths. The class label is asked apart, so that the edges of the
        # nodes below it are unit matrices.
        paths = self._paths
        edge = np.stack([stay, flip, flip, stay], axis=-1).reshape(-1, 2, 2)[paths.nodes]
        edge[paths.parent < 0] = UNIT
        up = _Upwards(paths, edge, local[paths.nodes])
        heads = np.flatnonzero(paths.parent < 0)
        roots = heads[np.argsort(paths.nodes[heads])]

        to_label = _log_sum(top + up.message[roots][:, None, :])
        finite, zeros = _split(to_label), np.isinf(to_label).astype(np.int64)
        of_label = label + _product(finite.sum(0), zeros.sum(0))
        relative = float(_log_sum(of_label[None])[0])
        if not np.isfinite(relative):
            raise InputError(
                "HiddenTree.given: this evidence has probability 0, so nothing can be conditioned on it."
            )
        above = label + _product(finite.sum(0) - finite, zeros.sum(0) - zeros)
        from_label = np.zeros((len(paths.nodes), 2))
        from_label[roots] = _log_sum(np.swapaxes(above[:, :, None] + top, 1, 2))
        belief = up.beliefs(from_label)
        of_one = np.empty(self.nodes)
        of_one[paths.nodes] = np.exp(belief[:, 1] - _log_sum(belief))
        return Posterior(relative + up.set_aside, np.exp(of_label - relative), of_one)

    def joint_probability(self, values: Mapping[int, int], *, class_label: int | None = None) -> float:
        """P of these nodes having these values (and of the class); 0 where that cannot be."""
        try:
            log_probability = self.posterior(values, class_label=class_label).log_evidence
        except InputError as error:
            if "probability 0" in str(error):
                return 0.0
            raise
        return float(np.exp(log_probability))

    @property
    def _prior(self) -> Array:
        return np.asarray(self.class_probabilities, dtype=np.float64)

    @property
    def _parents(self) -> Nodes:
        return np.asarray(self.parents, dtype=np.int64)

    @property
    def _edges(self) -> Array:
        return np.asarray(self.correlations, dtype=np.float64)

    @property
    def _zero(self) -> Array:
        return np.asarray(self.zero_given_class, dtype=np.float64)


def sequences_from_leaves(values: ArrayLike, *, length: int, padding: int | None = None) -> Nodes:
    """Token sequences (samples, length), padded in front: token l appears where leaf l is 1, in leaf order.

    Args:
        values: (samples, leaves) of 0 and 1. padding: the padding's number; the number of leaves if None.

    Raises:
        InputError: a sample with more tokens than ``length``.
    """
    present = np.asarray(values, dtype=bool)
    lengths = present.sum(axis=1)
    if lengths.max(initial=0) > length:
        raise InputError(
            f"sequences_from_leaves: sample {lengths.argmax()} has {lengths.max()} tokens, more than length "
            f"L = {length}; raise the length."
        )
    pad = present.shape[1] if padding is None else padding
    result = np.full((len(present), length), pad, dtype=np.int64)
    rows, tokens = np.nonzero(present)
    place = np.arange(rows.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    result[rows, length - lengths[rows] + place] = tokens
    return result


class _Upwards:
    """The messages from below, path by path, and with them what every node is believed to be.

    A node's own evidence and the messages of the paths that hang from it are a product from which one factor
    must be taken out again: a finite sum of logs, and a number of zeros.
    """

    def __init__(self, paths: TreePaths, edge: Array, local: Array) -> None:
        """``edge``: (slots, 2, 2), logs; ``local``: (slots, 2), logs of the evidence, 0 or -inf."""
        self.paths, self.edge = paths, edge
        self.finite, self.zeros = _split(local), np.isinf(local).astype(np.int64)
        self.message = np.empty_like(local)
        """(slots, 2): log of what each node tells its parent, up to a factor."""
        self.set_aside = 0.0
        """Log of the factors left out of the messages of the nodes at the top, all in all."""
        self.along = np.empty_like(edge)
        for rank in reversed(paths.ranks):
            own = _product(self.finite[rank], self.zeros[rank])
            self.along[rank], scale = normalise_logs(edge[rank] + own[:, None, :])
            product, scale = products_to_the_end(self.along[rank], scale, paths.remaining[rank])
            self.message[rank], more = normalise_logs(np.logaddexp(product[:, :, 0], product[:, :, 1]))
            heads = np.flatnonzero(paths.place[rank] == 0)
            self.set_aside += float((scale + more)[heads].sum())
            if rank.start:
                sent, above = self.message[rank][heads], paths.parent[rank][heads]
                np.add.at(self.finite, above, _split(sent))
                np.add.at(self.zeros, above, np.isinf(sent))

    def beliefs(self, from_label: Array) -> Array:
        """(slots, 2): log P[value | evidence] up to a factor, by node.

        ``from_label``: (slots, 2), the class label's message to each node at the top, unused elsewhere.
        """
        paths, down = self.paths, np.empty_like(self.message)
        goes_on = np.flatnonzero(paths.remaining > 0)
        kept_child = np.zeros_like(self.message)
        kept_child[goes_on] = self.message[goes_on + 1]
        for rank in paths.ranks:
            heads = rank.start + np.flatnonzero(paths.place[rank] == 0)
            if rank.start:
                above = paths.parent[heads]
                sent = self.message[heads]
                others = _product(self.finite[above] - _split(sent), self.zeros[above] - np.isinf(sent))
                entering, _ = normalise_logs(down[above] + others + kept_child[above])
            else:
                entering = from_label[heads]
            of_path = np.cumsum(paths.place[rank] == 0) - 1
            arriving = apply(entering[of_path], products_before(self.along[rank], paths.place[rank]))
            down[rank], _ = normalise_logs(apply(arriving, self.edge[rank]))
        return down + _product(self.finite, self.zeros) + kept_child


def _split(message: Array) -> Array:
    return np.where(np.isinf(message), 0.0, message)


def _product(finite: Array, zeros: NDArray[np.int64]) -> Array:
    return np.where(zeros > 0, -np.inf, finite)


def _log_sum(x: Array) -> Array:
    """log of the sum of exp over the last axis; -inf where all are."""
    top = x.max(axis=-1, keepdims=True)
    safe = np.where(np.isinf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        result: Array = np.log(np.exp(x - safe).sum(axis=-1)) + safe[..., 0]
    return result

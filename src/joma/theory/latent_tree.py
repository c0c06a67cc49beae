"""Hierarchical binary latent trees: which tokens co-occur (JoMA Sec. 5, App. A.5, Theorem 5, Eq. 8).

A class label ``y_0`` with D values has binary children; each binary latent has binary children, down to
the leaves, the tokens (``y_l = 1``: token l appears). An edge keeps its parent's value with probability
``(1 + rho) / 2``. With the signs ``s = 1 - 2 y`` (+1 for y = 0, -1 for y = 1) everything becomes a product:
along an edge ``E[s_child | s_parent] = rho s_parent``, so

* ``E[s_c]`` is the mean of the root's child times the edge correlations down to c;
* ``E[s_a s_b]`` is the product of the edge correlations between a and b, through their common latent
  ancestor (CLA), if that is binary.

Theorem 5 is these two lines. Where the print is wrong: ``rho_0`` (``joma.theory.class_labels``), the
remainder of Eq. 8 (``cooccurrence_expansion``), and the silent assumption that the CLA lies below the
class label (``cooccurrence_across_root`` is the case that is left out).
All numbers are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.arguments import check_broadcast, number, numbers, whole, wholes
from joma.core.errors import InputError
from joma.theory.class_labels import class_table

Array = NDArray[np.float64]


def transition_matrix(correlation: float) -> Array:
    """``M(rho) = [[1 + rho, 1 - rho], [1 - rho, 1 + rho]] / 2``: P[child | parent], (2, 2) (Def. 1, Eq. 89).

    Column j is the child's distribution given that the parent has value j. Lemma 8: M is symmetric,
    ``M 1 = 1``, ``M(a) M(b) = M(a b)`` (the product is commutative; printed "communicative") and
    ``M(a) p(b) = p(a b)``.

    Raises:
        InputError: a correlation outside [-1, 1].
    """
    rho = _correlation(correlation, "transition_matrix")
    return np.array([[1 + rho, 1 - rho], [1 - rho, 1 + rho]]) / 2


def marginal(bias: float) -> Array:
    """``p(rho) = [1 + rho, 1 - rho] / 2``: P[y = 0] and P[y = 1] of a latent with ``E[s] = rho`` (Def. 1).

    Raises:
        InputError: a bias outside [-1, 1].
    """
    rho = _correlation(bias, "marginal")
    return np.array([1 + rho, 1 - rho]) / 2


def chain_correlation(correlations: ArrayLike) -> float:
    """Lemma 9, Eq. 91: ``P[descendant | ancestor] = M(rho)``, rho the product along the chain's edges.

    ``correlations`` (edges,); without edges the chain is the latent itself, with correlation 1.

    Raises:
        InputError: a correlation outside [-1, 1].
    """
    return float(np.prod(_correlations(correlations, "chain_correlation")))


def pair_distribution(first: float, second: float, ancestor_bias: float) -> Array:
    """``P[y_a, y_b]`` (2, 2) of two latents below a binary common ancestor c (Eq. 93-98).

    ``first`` and ``second`` are the chain correlations from c to a and to b, ``ancestor_bias`` is
    ``rho_c = 2 P[y_c = 0] - 1``. Row: value of a; column: value of b.

    Raises:
        InputError: an argument outside [-1, 1].
    """
    to_first, to_second, bias = (_correlation(x, "pair_distribution") for x in (first, second, ancestor_bias))
    return _joint(to_first * bias, to_second * bias, to_first * to_second)


def cooccurrence(
    edge_correlation: ArrayLike, root_bias: ArrayLike, *, depth: ArrayLike, ancestor_height: ArrayLike
) -> Array:
    """Theorem 5: ``P[y_l = 1 | y_m = 1]`` of two tokens of the uniform tree HBLT(rho).

    ``(1 + rho^2H - 2 rho^(L-1) rho_0) / (2 (1 - rho^(L-1) rho_0))``, computed as
    ``1 - (1 - rho^2H) / (2 (1 - rho^(L-1) rho_0))`` with both differences free of cancellation, so that
    ``1 - rho`` may be as small as float64 can hold. Arguments broadcast; the result has their shape.

    Args:
        edge_correlation: rho, in [-1, 1].
        root_bias: rho_0 as ``joma.theory.class_labels.root_bias`` defines it (not as printed).
        depth: L, the number of edges from the class label to a leaf.
        ancestor_height: H, the number of edges from the CLA down to either leaf, 1 <= H <= L - 1: the CLA
            is binary. Two tokens whose CLA is the class label: ``cooccurrence_across_root``.

    Raises:
        InputError: rho or rho_0 outside [-1, 1], H not in 1..L-1, or a token m that never appears
            (rho^(L-1) rho_0 = 1), for which the conditional probability does not exist.
    """
    where = "cooccurrence"
    rho, bias = _correlations(edge_correlation, where), _correlations(root_bias, where)
    levels, height = _levels(depth, ancestor_height, where)
    check_broadcast(where, edge_correlation=rho.shape, root_bias=bias.shape, levels=(levels * height).shape)
    if np.any((height < 1) | (height > levels - 1)):
        raise InputError(
            f"{where}: ancestor_height H = {ancestor_height!r} at depth L = {depth!r}; Theorem 5 needs a "
            "binary common ancestor, 1 <= H <= L - 1 (for the label itself use cooccurrence_across_root)."
        )
    appears = _one_minus(rho, levels - 1, bias)
    _check_appears(appears, where)
    return 1 - _one_minus(rho, 2 * height, np.ones(())) / (2 * appears)


def cooccurrence_across_root(
    edge_correlation: ArrayLike, root_bias: ArrayLike, root_pair: ArrayLike, *, depth: ArrayLike
) -> Array:
    """The case H = L that Theorem 5 leaves out: two tokens whose only common ancestor is the class label.

    Then ``rho_0`` alone does not decide; what is needed is
    ``root_pair = E[s_1 s_1'] = sum_k P[y_0 = k] (2 P[y_1 = 0 | k] - 1) (2 P[y_1' = 0 | k] - 1)`` of the two
    children of the root above them, and
    ``P[y_l = 1 | y_m = 1] = (1 + rho^(2L-2) root_pair - 2 rho^(L-1) rho_0) / (2 (1 - rho^(L-1) rho_0))``
    for children with the same ``rho_0``. Theorem 5 with H = L would put ``rho^2`` for ``root_pair``.
    One class, one child: ``root_pair = 1 - 4 / D``. Arguments broadcast.

    Raises:
        InputError: an argument outside its range, moments that no pair of binary variables has, or a
            token m that never appears.
    """
    where = "cooccurrence_across_root"
    rho, bias, pair = (_correlations(x, where) for x in (edge_correlation, root_bias, root_pair))
    levels = wholes(where, "depth", depth, "edges")
    check_broadcast(
        where, edge_correlation=rho.shape, root_bias=bias.shape, root_pair=pair.shape, depth=levels.shape
    )
    if np.any(levels < 1):
        raise InputError(f"{where}: depth L = {depth!r}; give at least one edge.")
    if np.any(1 + pair < 2 * np.abs(bias) - 1e-12):
        raise InputError(
            f"{where}: root_pair = {root_pair!r} with rho_0 = {root_bias!r} belongs to no binary pair; "
            "root_pair must be at least 2 |rho_0| - 1."
        )
    appears = _one_minus(rho, levels - 1, bias)
    _check_appears(appears, where)
    return 1 - _one_minus(rho, 2 * levels - 2, pair) / (2 * appears)


def cooccurrence_expansion(noise: ArrayLike, *, depth: ArrayLike, ancestor_height: ArrayLike) -> Array:
    """Eq. 8 with the term it drops: ``1 - H / L + eps H (2 H - L) / (2 L)``, up to O(eps^2).

    For rho = rho_0 = 1 - eps. The print gives ``1 - H / L`` with a remainder O(eps^2); the remainder is
    O(eps) unless L = 2 H, where P = 1/2 for every eps. Arguments broadcast.

    Raises:
        InputError: a noise outside [0, 1], or so large that the expansion is not a probability; H not in
            1..L-1.
    """
    where = "cooccurrence_expansion"
    eps = numbers(where, "noise", noise)
    levels, height = _levels(depth, ancestor_height, where)
    check_broadcast(where, noise=eps.shape, levels=(levels * height).shape)
    if not np.all((eps >= 0) & (eps <= 1)):
        raise InputError(f"{where}: noise eps = {noise!r:.80}; give 1 - rho, at least 0 and at most 1.")
    if np.any((height < 1) | (height > levels - 1)):
        raise InputError(f"{where}: ancestor_height H = {ancestor_height!r} is not in 1..L-1, L = {depth!r}.")
    result: Array = 1 - height / levels + eps * height * (2 * height - levels) / (2 * levels)
    if np.any((result < 0) | (result > 1)):
        raise InputError(
            f"{where}: at eps = {noise!r:.80} the expansion is not a probability; give a smaller one."
        )
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentTree:
    """Any latent tree: a class label with D values, binary latents, a correlation of its own per edge.

    Nodes ``0 .. R-1`` are the children of the class label; nodes ``R, R+1, ...`` follow, each after its
    parent. Tokens are usually the leaves, but every pair of nodes is answered. Cost O(nodes^2).

    Raises:
        InputError: probabilities that are negative or do not sum to one, correlations outside [-1, 1],
            a parent that does not come before its child, lengths that do not match.
    """

    class_probabilities: ArrayLike
    """(D,): P[y_0 = k]."""
    zero_given_class: ArrayLike
    """(R, D): P[y_i = 0 | y_0 = k] of each child i of the class label."""
    parents: Sequence[int] = ()
    """Parent of node R, R+1, ..."""
    correlations: ArrayLike = ()
    """Edge correlation from that parent."""

    def __post_init__(self) -> None:
        where = "LatentTree"
        zero = np.atleast_2d(numbers(where, "zero_given_class", self.zero_given_class))
        if len(zero) == 0:
            raise InputError(f"{where}: zero_given_class is empty; give a row for each child of the label.")
        for row in zero:
            class_table(self.class_probabilities, row, where)
        edges = _correlations(self.correlations, where)
        if edges.shape != (len(self.parents),):
            raise InputError(
                f"{where}: {len(self.parents)} parents but correlations of shape {edges.shape}; "
                "give one correlation per parent."
            )
        for offset, parent in enumerate(self.parents):
            node = len(zero) + offset
            if not 0 <= whole(where, "parent", parent, least=-node) < node:
                raise InputError(f"{where}: parent {parent} of node {node} must be one of 0..{node - 1}.")

    @classmethod
    def uniform(
        cls,
        *,
        class_probabilities: ArrayLike,
        zero_given_class: ArrayLike,
        children: int,
        depth: int,
        edge_correlation: float,
    ) -> Self:
        """HBLT(rho): below each child of the class label a complete tree down to depth L = ``depth``.

        The leaves are the last ``R children^(depth-1)`` nodes; neighbours in that order are siblings.
        """
        where = "LatentTree.uniform"
        for name, value in (("children", children), ("depth", depth)):
            whole(where, name, value, least=1)
        layer = list(range(len(np.atleast_2d(numbers(where, "zero_given_class", zero_given_class)))))
        parents: list[int] = []
        for _ in range(depth - 1):
            start = layer[-1] + 1
            parents += [parent for parent in layer for _ in range(children)]
            layer = list(range(start, start + len(layer) * children))
        return cls(
            class_probabilities=class_probabilities,
            zero_given_class=zero_given_class,
            parents=tuple(parents),
            correlations=np.full(len(parents), number(where, "edge_correlation", edge_correlation)),
        )

    @property
    def nodes(self) -> int:
        """How many binary latents there are, tokens included, the class label not."""
        return len(np.atleast_2d(np.asarray(self.zero_given_class))) + len(self.parents)

    @cached_property
    def leaves(self) -> NDArray[np.intp]:
        """The nodes without children, in order: the tokens."""
        return np.setdiff1d(np.arange(self.nodes), np.asarray(self.parents, dtype=np.intp))

    @cached_property
    def means_given_class(self) -> Array:
        """``E[s_i | y_0 = k]`` (nodes, D), with ``s = 1 - 2 y``."""
        means = [2 * row - 1 for row in np.atleast_2d(np.asarray(self.zero_given_class, dtype=np.float64))]
        for parent, rho in zip(self.parents, np.asarray(self.correlations), strict=True):
            means.append(rho * means[parent])
        return np.array(means)

    @cached_property
    def means(self) -> Array:
        """``E[s_i] = 2 P[y_i = 0] - 1`` (nodes,): rho_c of Eq. 95 for every node."""
        prior = np.asarray(self.class_probabilities, dtype=np.float64)
        return np.asarray(self.means_given_class @ prior)

    @cached_property
    def second_moments(self) -> Array:
        """``E[s_i s_j]`` (nodes, nodes): the product of the correlations on the path between i and j.

        Where that path runs through the class label, its part at the top is
        ``sum_k P[y_0 = k] E[s_a | k] E[s_b | k]`` of the two children a, b of the label.
        """
        top = np.asarray(self.class_probabilities, dtype=np.float64)
        roots = self.nodes - len(self.parents)
        moments = np.eye(self.nodes)
        of_roots = (self.means_given_class[:roots] * top) @ self.means_given_class[:roots].T
        moments[:roots, :roots] = np.where(np.eye(roots, dtype=bool), 1.0, of_roots)
        edges = zip(self.parents, np.asarray(self.correlations), strict=True)
        for node, (parent, rho) in enumerate(edges, start=roots):
            moments[node, :node] = moments[:node, node] = rho * moments[parent, :node]
        return moments

    def joint(self, first: int, second: int) -> Array:
        """``P[y_first, y_second]`` (2, 2), Eq. 98 without its assumptions of one rho and one height.

        Raises:
            InputError: a node that the tree does not have.
        """
        self._check_nodes((first, second), "LatentTree.joint")
        return _joint(self.means[first], self.means[second], self.second_moments[first, second])

    def cooccurrence(self, tokens: Sequence[int] | NDArray[np.intp] | None = None) -> Array:
        """``P[y_l = 1 | y_m = 1]`` for every pair (l row, m column) of ``tokens`` (all leaves by default).

        Theorem 5 for trees that need not be uniform; the diagonal is 1.

        Raises:
            InputError: a token that the tree does not have, or that never appears (no conditional exists).
        """
        chosen = self.leaves if tokens is None else self._check_nodes(tokens, "LatentTree.cooccurrence")
        means, moments = self.means[chosen], self.second_moments[np.ix_(chosen, chosen)]
        appears = 1 - means
        if np.any(appears <= 0):
            raise InputError(
                f"LatentTree.cooccurrence: token {chosen[np.argmin(appears)]} never appears (P[y = 1] = 0), "
                "so nothing can be conditioned on it; leave it out of tokens."
            )
        return (1 - means[:, None] - means[None, :] + moments) / (2 * appears[None, :])

    def _check_nodes(self, nodes: ArrayLike, where: str) -> NDArray[np.int64]:
        chosen = wholes(where, "nodes", nodes, "a node each")
        for node in chosen[(chosen < 0) | (chosen >= self.nodes)]:
            raise InputError(f"{where}: node {node} is not one of 0..{self.nodes - 1}.")
        if chosen.ndim != 1:
            raise InputError(f"{where}: nodes of shape {chosen.shape}; give a list of them.")
        return chosen


def _joint(first_mean: float, second_mean: float, moment: float) -> Array:
    """P[y_a, y_b] from E[s_a], E[s_b] and E[s_a s_b]."""
    sign = np.array([1.0, -1.0])
    joint = 1 + moment * np.outer(sign, sign) + first_mean * sign[:, None] + second_mean * sign[None, :]
    return np.asarray(joint / 4, dtype=np.float64)


def _one_minus(rho: Array, power: NDArray[np.int64], factor: Array) -> Array:
    """``1 - rho^power factor`` without cancellation where the product is near one."""
    rho, power, factor = np.broadcast_arrays(rho, power, factor)
    product = rho**power * factor
    near = product > 0.5
    # |x| - 1 is exact for |x| in [1/2, 1], so the logarithms keep every digit of 1 - |x|; the product is
    # above 1/2 only if every factor is.
    logarithm = power * np.log1p(np.where(near & (power > 0), np.abs(rho) - 1, 0.0))
    logarithm = logarithm + np.log1p(np.where(near, np.abs(factor) - 1, 0.0))
    result: Array = np.where(near, -np.expm1(logarithm), 1 - product)
    return result


def _check_appears(appears: Array, where: str) -> None:
    if np.any(appears <= 0):
        raise InputError(
            f"{where}: rho^(L-1) rho_0 = 1, so the token m never appears and nothing can be conditioned on "
            "it; give a correlation or a root bias below 1."
        )


def _correlations(values: ArrayLike, where: str) -> Array:
    array = numbers(where, "correlation", values)
    if not np.all(np.abs(array) <= 1):
        worst = array[~(np.abs(array) <= 1)].flat[0]
        raise InputError(f"{where}: correlation {worst} is outside [-1, 1]; give a rho between -1 and 1.")
    return array


def _correlation(value: ArrayLike, where: str) -> float:
    return number(where, "correlation", _correlations(value, where))


def _levels(depth: ArrayLike, height: ArrayLike, where: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    levels = wholes(where, "depth", depth, "edges")
    ancestor = wholes(where, "ancestor_height", height, "edges")
    check_broadcast(where, depth=levels.shape, ancestor_height=ancestor.shape)
    return levels, ancestor

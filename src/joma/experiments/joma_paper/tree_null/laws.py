"""The tree's law of its tokens, and the law of largest entropy that has the same pairs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joma.core.arguments import Array
from joma.core.errors import InputError
from joma.experiments.shared.trees import enumerate_states, tree_below_classes
from joma.theory.latent_tree import LatentTree

DEPTH = 4
"""Edges from the class label to a token: eight tokens."""
_STEPS, _EXACT = 200, 1e-12


@dataclass(frozen=True, eq=False)
class Law:
    """A law of binary tokens, sequence by sequence."""

    patterns: NDArray[np.int64]
    """y (2^n, n), 0 or 1: pattern k has token l where bit l of k is set."""
    probability: Array
    """(2^n,)."""

    def moment(self, tokens: tuple[int, ...]) -> float:
        """E of the product of the signs s = 1 - 2 y of these tokens."""
        return float(self.probability @ (1 - 2 * self.patterns[:, list(tokens)]).prod(axis=1))

    def draw(self, count: int, seed: list[int]) -> NDArray[np.int64]:
        """Sequences (count, n)."""
        random = np.random.default_rng(seed)
        return self.patterns[random.choice(len(self.patterns), size=count, p=self.probability)]

    def given_others(self, tokens: NDArray[np.int64]) -> Array:
        """P[y_m = 1 | all other tokens] of every token of every sequence (sequences, n)."""
        bits = 1 << np.arange(tokens.shape[1])
        codes = (tokens @ bits)[:, None]
        with_it, without = self.probability[codes | bits], self.probability[codes & ~bits]
        return np.asarray(with_it / (with_it + without))

    def contexts(self) -> tuple[Array, Array, Array]:
        """Contexts of token 0: the others (2^n, n - 1), whether it is there (2^n,), probability (2^n,).

        Contexts with it and without it weigh one half each, as in ``fig5``.
        """
        there = self.patterns[:, 0].astype(np.float64)
        weights = self.probability.copy()
        for value in (0, 1):
            weights[there == value] /= 2 * weights[there == value].sum()
        return self.patterns[:, 1:].astype(np.float64), there, weights


def tree(edge_correlation: float) -> LatentTree:
    """HBLT(rho) with eight tokens, its top latent on in half of the sequences."""
    return tree_below_classes(classes=2, depth=DEPTH, edge_correlation=edge_correlation)


def law_of_tree(given: LatentTree) -> tuple[Law, Array]:
    """The law of the tree's tokens, and E[s_i | tokens] of its latents above them (2^n, latents)."""
    states, weights = enumerate_states(given)
    leaves = given.leaves
    size = len(leaves)
    codes = states[:, leaves].astype(np.int64) @ (1 << np.arange(size))
    probability: Array = np.bincount(codes, weights=weights, minlength=2**size).astype(np.float64)
    above = np.setdiff1d(np.arange(given.nodes), leaves)
    signs = 1.0 - 2.0 * states[:, above]
    latents = [np.bincount(codes, weights=weights * sign, minlength=2**size) for sign in signs.T]
    return Law(_patterns(size), probability), np.stack(latents, axis=1) / probability[:, None]


def law_of_pairs(given: Law) -> Law:
    """Of all laws with the same means and pairs as ``given``, the one of largest entropy.

    ``p(s)`` proportional to ``exp(sum h_i s_i + sum J_ij s_i s_j)``, fitted by Newton's method: the moments
    are the gradient of the logarithm of the normalisation, their covariance its Hessian.

    Raises:
        InputError: the pairs are so strong that no such law is found.
    """
    size = given.patterns.shape[1]
    signs = 1.0 - 2.0 * given.patterns
    pairs = list(itertools.combinations(range(size), 2))
    features = np.column_stack([signs, *(signs[:, i] * signs[:, j] for i, j in pairs)])
    wanted = given.probability @ features
    couplings = np.zeros(features.shape[1])

    def fit(at: Array) -> tuple[Array, float]:
        exponent = features @ at
        top = exponent.max()
        weights = np.exp(exponent - top)
        return weights / weights.sum(), float(top + np.log(weights.sum()) - wanted @ at)

    probability, dual = fit(couplings)
    for _ in range(_STEPS):
        found = probability @ features
        missing = wanted - found
        if np.abs(missing).max() < _EXACT:
            return Law(given.patterns, probability)
        centred = features - found
        step = np.linalg.solve(centred.T @ (probability[:, None] * centred), missing)
        size_of_step = 1.0
        while (tried := fit(couplings + size_of_step * step))[1] > dual + 1e-14 and size_of_step > 1e-6:
            size_of_step /= 2
        couplings, (probability, dual) = couplings + size_of_step * step, tried
    raise InputError(
        f"law_of_pairs: no law of largest entropy within {_STEPS} steps (largest error of a moment "
        f"{np.abs(missing).max():.1e}); give pairs that are less strong."
    )


def _patterns(size: int) -> NDArray[np.int64]:
    return (np.arange(2**size)[:, None] >> np.arange(size)) & 1

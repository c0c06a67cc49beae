"""A change of low rank, W + s B A (Hu et al. 2021), by its factors: its singular values, how many of them
count, where it points, and what a random one of the same shape would do.

The product is never formed: of s B A = U S V^T the factors give U, S and V by two thin QR decompositions
and the singular values of a square matrix of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

from joma.core.arguments import Array
from joma.core.errors import InputError

SHARE = 0.99
"""Share of the energy (the squared singular values' sum) that the used directions hold."""
DRAWS = 20
"""Random changes that stand beside one."""
RANGE = (0.05, 0.95)
"""Quantiles of the random ones that are given."""
_DENSE = 400
"""Below this size all singular vectors are computed."""


@dataclass(frozen=True, eq=False)
class LowRankChange:
    """``left`` (outputs, k) and ``right`` (inputs, k) with orthonormal columns, ``singular_values`` (k,)
    falling; k is the rank that was given, or less where a side is shorter. float64."""

    left: Array
    singular_values: Array
    right: Array

    @property
    def energy(self) -> float:
        """The squared Frobenius norm."""
        return float(np.sum(self.singular_values**2))


def low_rank_change(down: Array, up: Array, scale: float = 1.0) -> LowRankChange:
    """The singular value decomposition of scale * up @ down, from the factors.

    Args:
        down: A, (rank, inputs).
        up: B, (outputs, rank).
        scale: s, a number of any sign.

    Raises:
        InputError: factors that do not fit each other, or that are not finite.

    Examples:
        >>> down, up = np.eye(2, 5), np.diag([3.0, 4.0])
        >>> low_rank_change(down, up).singular_values.tolist()
        [4.0, 3.0]
    """
    down, up = np.asarray(down, np.float64), np.asarray(up, np.float64)
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise InputError(
            f"low_rank_change: factors of shapes {down.shape} and {up.shape}; give (rank, inputs) and "
            "(outputs, rank)."
        )
    if not (np.isfinite(down).all() and np.isfinite(up).all() and np.isfinite(scale)):
        raise InputError("low_rank_change: a factor has entries that are not finite; save the adapter again.")
    q_up, r_up = np.linalg.qr(up)
    q_down, r_down = np.linalg.qr(down.T)
    u, s, v = np.linalg.svd(scale * (r_up @ r_down.T), full_matrices=False)
    return LowRankChange(q_up @ u, s, q_down @ v.T)


def count_used(singular_values: Array, share: float = SHARE) -> int:
    """How many of the largest singular values hold ``share`` of the sum of all squares; 0 where all are zero.

    Examples:
        >>> count_used(np.array([10.0, 1.0, 0.1]))
        1
        >>> count_used(np.array([10.0, 2.0, 0.1]))
        2
    """
    energy = np.cumsum(np.sort(np.asarray(singular_values, np.float64) ** 2)[::-1])
    if not len(energy) or energy[-1] == 0:
        return 0
    return int(np.searchsorted(energy, share * energy[-1] * (1 - 1e-12))) + 1


def effective_directions(singular_values: Array) -> float:
    """exp of the entropy (nats) of sigma_i / sum sigma: Roy and Vetterli's effective rank; NaN where all are
    zero.

    Examples:
        >>> effective_directions(np.array([1.0, 1.0, 0.0]))
        2.0
    """
    weights = np.asarray(singular_values, np.float64)
    weights = weights[weights > 0] / weights.sum() if weights.any() else weights[:0]
    return round(float(np.exp(-np.sum(weights * np.log(weights)))), 12) if len(weights) else float("nan")


def leading_directions(weight: Array, count: int, *, seed: int = 0) -> tuple[Array, Array]:
    """The left and right singular vectors, (outputs, count) and (inputs, count), of the largest singular
    values.

    Small matrices are decomposed whole, large ones by ARPACK to rounding.

    Raises:
        InputError: a matrix that is not finite, or has fewer sides than ``count``.

    Examples:
        >>> left, right = leading_directions(np.diag([1.0, 3.0, 2.0]), 1)
        >>> np.abs(left[:, 0]).round(6).tolist()
        [0.0, 1.0, 0.0]
    """
    weight = np.asarray(weight, np.float64)
    if weight.ndim != 2 or not 1 <= count <= min(weight.shape) or not np.isfinite(weight).all():
        raise InputError(
            f"leading_directions: {count} directions of a matrix of shape {weight.shape}; give a finite "
            "matrix with as many rows and columns at least."
        )
    if min(weight.shape) <= max(_DENSE, 3 * count):
        u, _, v = np.linalg.svd(weight, full_matrices=False)
        return u[:, :count], v[:count].T
    start = np.random.default_rng(seed).standard_normal(min(weight.shape))
    u, s, v = svds(weight, k=count, v0=start)
    order = np.argsort(s)[::-1]
    return u[:, order], v[order].T


def share_within(directions: Array, basis: Array, singular_values: Array) -> float:
    """Share of a change's energy that lies in the space of ``basis``; NaN where the change is zero.

    Args:
        directions: of the change, (n, k): its left or its right singular vectors.
        basis: orthonormal columns, (n, m).
        singular_values: of the change, (k,).

    Examples:
        >>> share_within(np.eye(3, 2), np.eye(3, 1), np.array([2.0, 1.0]))
        0.8
    """
    energy = np.asarray(singular_values, np.float64) ** 2
    if not energy.any():
        return float("nan")
    inside = np.sum((basis.T @ directions) ** 2, axis=0)
    return float(np.sum(inside * energy) / energy.sum())


@dataclass(frozen=True)
class RandomChange:
    """What random factors of a shape give: ``measure`` -> (mean, low, high), low and high the quantiles
    ``RANGE``."""

    used: tuple[float, float, float]
    effective: tuple[float, float, float]
    outputs: tuple[float, float, float]
    inputs: tuple[float, float, float]


@lru_cache(maxsize=256)
def random_change(
    outputs: int, inputs: int, rank: int, leading: int, *, draws: int = DRAWS, seed: int = 0
) -> RandomChange:
    """Measure changes whose factors are independent Gaussian numbers.

    Their directions are isotropic, so that any basis serves for the overlap; the first ``leading`` axes do.

    Examples:
        >>> random_change(40, 30, 4, 4).used[0] > 3
        True
    """
    generator = np.random.default_rng([seed, outputs, inputs, rank])
    found: dict[str, list[float]] = {"used": [], "effective": [], "outputs": [], "inputs": []}
    for _ in range(draws):
        down, up = generator.standard_normal((rank, inputs)), generator.standard_normal((outputs, rank))
        change = low_rank_change(down, up)
        values = change.singular_values
        found["used"].append(count_used(values))
        found["effective"].append(effective_directions(values))
        for side, directions in (("outputs", change.left), ("inputs", change.right)):
            basis = np.eye(len(directions), min(leading, len(directions)))
            found[side].append(share_within(directions, basis, values))
    return RandomChange(**{name: _summary(np.array(values)) for name, values in found.items()})


def _summary(values: NDArray[np.float64]) -> tuple[float, float, float]:
    low, high = np.quantile(values, RANGE)
    return float(values.mean()), float(low), float(high)


@dataclass(frozen=True)
class RankSuggestion:
    """A rank, why, and whether the given one was used up."""

    rank: int | None
    reason: str
    used_up: bool


def suggest_rank(
    changes: dict[str, tuple[int, Array, float]], *, share: float = SHARE, seed: int = 0
) -> RankSuggestion:
    """A rank for the next training of an adapter, from what this one did with its own.

    Where modules that hold half of the energy use as many directions as a random change does, the rank was
    used up, and twice as much is worth a try. Otherwise it is the least rank to which all modules can be cut
    while ``share`` of the energy of all changes is kept. Energy is not loss: the loss has to say whether it
    is as good.

    Args:
        changes: module -> (rank given, singular values, the least number of directions, as ``count_used``
            counts them, that is usual among random changes of the module's shape).
        share: of the energy.

    Examples:
        >>> suggest_rank({"q": (8, np.array([3.0, 1.0, 0.0, 0.0]), 7.0)}).rank
        2
    """
    squares = {name: np.sort(values**2)[::-1] for name, (_, values, _) in changes.items()}
    total = sum(float(energy.sum()) for energy in squares.values())
    if not total:
        return RankSuggestion(None, "Every change is zero: this adapter has not learned.", False)
    given = max(rank for rank, _, _ in changes.values())
    full = [n for n, (_, values, usual) in changes.items() if (k := count_used(values)) and k >= usual]
    held = sum(float(squares[name].sum()) for name in full) / total
    if held >= 0.5:
        return RankSuggestion(
            2 * given,
            f"{len(full)} of {len(changes)} modules, with {held:.0%} of the energy, spread their change over "
            "as many directions as a random adapter does: the rank was used up. Whether more helps, training "
            "tells.",
            True,
        )

    def share_kept(rank: int) -> float:
        return sum(float(energy[:rank].sum()) for energy in squares.values()) / total

    enough = next(rank for rank in range(1, given + 1) if share_kept(rank) >= share * (1 - 1e-12))
    own = {name: float(e[:enough].sum() / e.sum()) for name, e in squares.items() if e.any()}
    worst = min(own, key=lambda name: own[name])
    return RankSuggestion(
        enough,
        f"{enough} of the {given} directions given keep {_percent(share_kept(enough))} of the energy of all "
        f"changes; the module that loses most, {worst}, keeps {_percent(own[worst])}.",
        False,
    )


def _percent(share: float) -> str:
    """No share below one is called 100 %."""
    return f"{np.floor(1000 * share + 1e-9) / 10:g} %"

"""How many nodes it takes until one has left the shut gate: coverage over K and the initial scale.

Nodes start at random small weights, v(0) ~ N(0, scale^2 |mu|^2 I) in n dimensions, under the bias xi = rho_-
|mu| < 0 of Theorem 3's block (ReLU, Gaussian classes at the distance X, a_-/a_+ such that mu is a rest). The
drift is along mu and along v, so that under uniform attention (and with exp attention while weights are
small) each node follows a plane flow of its length l = |v|/|mu| and its cosine c with mu: in units of
|mu|/a_+, with r = rho_-/l,

    l' = X c theta_1(X c + r) + theta_2(X c + r) - ratio theta_2(r),
    c' = X theta_1(X c + r) (1 - c^2)/l.

At c = 1 it is ``joma.theory.escape_time``'s. Whoever starts longer than l*(c) has half of mu within a given
patience, so that with c distributed as the cosine of a random direction and l as scale times chi_n

    q = E_c P[chi_n > l*(c)/scale],    P[one of K nodes] = 1 - (1 - q)^K,

for each of the latents that have K nodes of their own (JoMA: node k receives the gradient of class k). As l*
> 0, **q falls with the scale as e^{-l*^2/(2 scale^2)}, and the number of nodes that it takes, ln 2/q, grows
as fast**: of small weights over-parametrisation is the price.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaincc, ndtr

from joma.core.arguments import broadcast, number, positive, whole
from joma.core.errors import InputError
from joma.theory.escape_time import GAUSSIAN
from joma.theory.isotropic import RELU, gate_moments

Array = NDArray[np.float64]
Pair = tuple[Array, Array]
Pace = Callable[[Array, Array], Pair]

# A step of the plane flow moves ln l and c by so much together; times are then right to about 1e-3.
_STEP = 0.06
_ANGLES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_ANGLES, _WEIGHTS = 0.5 * np.pi * (_ANGLES + 1.0), 0.5 * np.pi * _WEIGHTS
# Between which l*(c) is sought, by bisection of its logarithm.
_SHORTEST, _LONGEST, _HALVINGS = 1e-3, 4.0, 13


def arrival_time(
    length: ArrayLike,
    cosine: ArrayLike,
    *,
    distance: float,
    rho_minus: float,
    end: float = 0.5,
    patience: float = 400.0,
) -> Array:
    """When a node has the share ``end`` of mu, in transverse time constants; inf if not within the patience.

    Args:
        length: |v(0)|/|mu|, positive; broadcasts with ``cosine``.
        cosine: of v(0) and mu, from -1 to 1.
        distance: X, in standard deviations of the classes.
        rho_minus: xi/|mu|, negative.
        end: share of mu, l c, at which the node counts as arrived, above 0 and below 1.
        patience: in time constants of the rest's transverse direction.

    Raises:
        InputError: a number out of these ranges.

    Examples:
        >>> time = arrival_time(0.2, [1.0, 0.5, 0.0], distance=1.1, rho_minus=-1.0)
        >>> [f"{one:.2f}" for one in time]
        ['31.25', 'inf', 'inf']
    """
    where = "arrival_time"
    given, along = broadcast(where, length=length, cosine=cosine)
    apart, below = positive(where, "distance", distance), number(where, "rho_minus", rho_minus)
    target, last = positive(where, "end", end), positive(where, "patience", patience)
    if np.any(given <= 0) or np.any(np.abs(along) > 1) or below >= 0 or target >= 1:
        raise InputError(
            f"{where}: give length > 0, cosine from -1 to 1, rho_minus = {below:g} below 0 and end = "
            f"{target:g} below 1."
        )
    first, second = gate_moments(GAUSSIAN, RELU, apart + below, 1.0)
    ratio = (apart * first + second) / gate_moments(GAUSSIAN, RELU, below, 1.0)[1]
    unit = apart * first

    def pace(size: Array, c: Array) -> tuple[Array, Array]:
        r = below / size
        plus = apart * c + r
        gate = ndtr(plus)
        turn = apart * gate * (1.0 - c * c) / size
        grow = apart * c * gate + _density(plus) - ratio * _density(r)
        return np.asarray(grow / unit), np.asarray(turn / unit)

    shape = np.broadcast_shapes(given.shape, along.shape)
    size, c = (np.broadcast_to(a, shape).ravel().astype(np.float64) for a in (given, along))
    found = np.where(size * c >= target, 0.0, np.inf)
    t, going = np.zeros(size.size), np.flatnonzero(found > 0)
    while going.size:
        size0, c0, t0 = size[going], c[going], t[going]
        grow, turn = pace(size0, c0)
        step = np.minimum(_STEP / (np.abs(grow) / size0 + np.abs(turn) + 1e-300), 0.02 * last)
        size1, c1 = _runge_kutta(pace, size0, c0, step, (grow, turn))
        before, after = size0 * c0, size1 * c1
        arrived = after >= target
        part = np.where(arrived, (target - before) / np.where(arrived, after - before, 1.0), 1.0)
        t1 = t0 + part * step
        found[going[arrived & (t1 <= last)]] = t1[arrived & (t1 <= last)]
        size[going], c[going], t[going] = size1, c1, t1
        going = going[~arrived & (t1 < last)]
    return found.reshape(shape)


def _density(rho: Array) -> Array:
    """theta_2 of Gaussian data and ReLU."""
    return np.asarray(np.exp(-0.5 * rho * rho) / np.sqrt(2 * np.pi))


def _runge_kutta(pace: Pace, size: Array, along: Array, step: Array, first: Pair) -> Pair:
    """The classical fourth-order step of both, kept within l > 0 and |c| <= 1."""

    def move(by: Pair) -> Pair:
        return np.maximum(size + step * by[0], 1e-3 * size), np.clip(along + step * by[1], -1.0, 1.0)

    second = pace(*move((0.5 * first[0], 0.5 * first[1])))
    third = pace(*move((0.5 * second[0], 0.5 * second[1])))
    fourth = pace(*move(third))
    mean = [
        (a + 2.0 * b + 2.0 * c + d) / 6.0 for a, b, c, d in zip(first, second, third, fourth, strict=True)
    ]
    return move((mean[0], mean[1]))


def least_length(
    cosine: ArrayLike, *, distance: float, rho_minus: float, end: float = 0.5, patience: float = 400.0
) -> Array:
    """l*(c): the least initial |v|/|mu| from which a node arrives within the patience; inf if none to 4 does.

    Arguments as of ``arrival_time``.
    """
    along = np.atleast_1d(np.asarray(cosine, dtype=np.float64))

    def arrives(length: Array) -> NDArray[np.bool_]:
        return np.isfinite(
            arrival_time(length, along, distance=distance, rho_minus=rho_minus, end=end, patience=patience)
        )

    # Very long nodes that point away take their time to turn: the shortest of a grid that arrives is sought.
    grid = np.geomspace(_SHORTEST, _LONGEST, 25)
    reached = arrives(grid[:, None])
    place = reached.argmax(axis=0)
    high, low = grid[place], grid[np.maximum(place - 1, 0)]
    for _ in range(_HALVINGS):
        middle = np.sqrt(low * high)
        there = arrives(middle)
        low, high = np.where(there, low, middle), np.where(there, middle, high)
    return np.where(reached.any(axis=0), high, np.inf).reshape(np.shape(cosine))


def arrival_probability(
    scale: ArrayLike,
    *,
    dimensions: int,
    distance: float,
    rho_minus: float,
    end: float = 0.5,
    patience: float = 400.0,
) -> Array:
    """q: the probability that a node whose weights start at random has half of mu within the patience.

    Args:
        scale: standard deviation of each initial weight over |mu|, positive, any shape.
        dimensions: n, at least 2.
        distance: and what follows, as of ``arrival_time``.
    """
    where = "arrival_probability"
    (size,) = broadcast(where, scale=scale)
    n = whole(where, "dimensions", dimensions, least=2)
    if np.any(size <= 0):
        raise InputError(f"{where}: scale must be positive.")
    least = least_length(np.cos(_ANGLES), distance=distance, rho_minus=rho_minus, end=end, patience=patience)
    density = _WEIGHTS * np.sin(_ANGLES) ** (n - 2)
    density /= density.sum()
    tail = gammaincc(0.5 * n, 0.5 * np.square(least / size[..., None]))
    return np.asarray(tail @ density)


def coverage(probability: ArrayLike, neurons: ArrayLike, latents: int = 1) -> Array:
    """The probability that each of ``latents`` has one of its own ``neurons`` nodes arrive.

    Args:
        probability: q of one node, from 0 to 1; broadcasts with ``neurons``.
        neurons: K, the nodes of each latent, not negative.
        latents: at least 1.

    Examples:
        >>> [f"{one:.3f}" for one in coverage(0.1, [1, 10, 100])]
        ['0.100', '0.651', '1.000']
    """
    q, k = broadcast("coverage", probability=probability, neurons=neurons)
    number_of = whole("coverage", "latents", latents, least=1)
    if np.any((q < 0) | (q > 1)) or np.any(k < 0):
        raise InputError("coverage: probability must lie between 0 and 1, neurons must not be negative.")
    with np.errstate(divide="ignore"):
        return np.asarray(np.power(-np.expm1(k * np.log1p(-q)), number_of))


def neurons_needed(probability: ArrayLike, *, wanted: float = 0.5) -> Array:
    """K at which ``coverage`` of one latent reaches ``wanted``: ln(1 - wanted)/ln(1 - q)."""
    (q,) = broadcast("neurons_needed", probability=probability)
    share = positive("neurons_needed", "wanted", wanted)
    if np.any((q <= 0) | (q >= 1)) or share >= 1:
        raise InputError("neurons_needed: probability and wanted must lie between 0 and 1, both excluded.")
    return np.asarray(np.log1p(-share) / np.log1p(-q))

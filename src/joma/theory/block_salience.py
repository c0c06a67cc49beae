"""The salience flow of the block itself, which Eq. 6 is not: rest, rates, time and exact course.

The gate of Eq. 1 reads the attended input ``b = e^z o x``, so that with Theorem 3's C = I and Theorem 1's
z = kappa v^2/2 each component of the lower-layer weights obeys

    v' = (mu - u) e^z,    u = v e^z,    z = kappa v^2 / 2,    kappa = eta_z / (eta_w T^2),

z the attention logit over the temperature T (``joma.theory.invariants``: Theorem 1,
for the logit itself).

Eq. 6 as printed leaves the gate reading the bare input, ``mu - v`` for ``mu - u``. With
W = W(kappa mu^2), Lambert's function, the block rests where u = mu: v* = mu e^{-W/2}, z* = W/2, so that
attention ends nearly proportional to mu (e^{z*} = mu sqrt(kappa/W)) instead of to e^{kappa mu^2/2}.

In the attended weight u the flow is one of a rate that only grows, and in L = ln 1/|1 - u/mu| it neither
saturates nor is it stiff:

    u' = (1 + w) e^w (mu - u),    dL/dt = (1 + w) e^w,    w = W(kappa u^2) = kappa v^2.

Its time is t = int_0^L e^{-w}/(1 + w) dL, from v(0) = 0, in units of 1/eta_w. Linear attention,
z = sqrt(v^2 + c), gives u' = sqrt(c^2 + 4 u^2) (mu - u): the printed flow of
``joma.theory.salience_variants`` in u instead of v, with c^2/4 for c, on a clock twice as fast.

K hidden nodes share their logits, z = kappa/2 sum_k v_k^2; from v(0) = 0 each v_k stays proportional to its
mu_k, so that all of this holds with |mu| = (sum_k mu_k^2)^{1/2} for mu and sum_k v_k^2 for v^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw, logsumexp

from joma.core.arguments import broadcast, finite, numbers, positive, within_floats
from joma.core.errors import InputError
from joma.theory.salience_variants import solve_linear_attention

Array = NDArray[np.float64]

LARGEST = 1e150
"""The largest sqrt(kappa) |mu|: its square is a float."""

# Gauss-Legendre points of a panel. The integrand's singularities nearest to the axis lie at
# L = +-0.6i/(sqrt(kappa) mu) (the branch point of W at -1/e) and beyond |Im L| = pi; panels are as wide as
# 0.4 of the distance to them, at most 1, so that twelve points integrate one to rounding.
_POINTS, _WEIGHTS = (0.5 * a for a in np.polynomial.legendre.leggauss(12))
_POINTS = _POINTS + 0.5
# From here on u is mu to a relative 1e-18.
_SETTLED = 42.0


@dataclass(frozen=True, eq=False)
class BlockCourse:
    """Components of the block's weights on their way to rest, from v(0) = 0.

    ``mu`` (m,), ``times`` (n,), ``log_inverse_delta`` (n, m) = ln 1/|1 - u/mu|, ``kappa``.
    """

    mu: Array
    times: Array
    log_inverse_delta: Array
    kappa: float

    @property
    def attended(self) -> Array:
        """u = v e^z, what the gate reads, (n, m)."""
        return np.asarray(-np.expm1(-self.log_inverse_delta) * self.mu)

    @property
    def logits(self) -> Array:
        """z = kappa v^2/2, (n, m)."""
        return 0.5 * lambert(self.kappa * np.square(self.attended))

    @property
    def v(self) -> Array:
        """The weights, (n, m)."""
        return np.asarray(self.attended * np.exp(-self.logits))

    @property
    def entropy(self) -> Array:
        """Entropy of softmax(z) in nats, (n,)."""
        return entropy(self.logits)


def lambert(argument: ArrayLike) -> Array:
    """Lambert's W of numbers that are not negative: W e^W = argument."""
    return np.asarray(np.real(lambertw(np.asarray(argument, dtype=np.float64), 0)))


def entropy(logits: Array) -> Array:
    """Entropy in nats of softmax(logits) over the last axis."""
    p = np.exp(logits - logsumexp(logits, axis=-1, keepdims=True))
    return np.asarray(logsumexp(logits, axis=-1) - np.sum(p * logits, axis=-1))


# --- rest ---------------------------------------------------------------------------------------


def rest(mu: ArrayLike, *, kappa: float = 1.0) -> tuple[Array, Array]:
    """Where the block rests: (v*, z*) = (mu e^{-W/2}, W/2), W = W(kappa mu^2); shapes of ``mu``."""
    points, scaled = scaled_points("block_salience.rest", mu, kappa)
    half = 0.5 * lambert(np.square(scaled))
    return np.asarray(points * np.exp(-half)), half


def rest_of_nodes(mu: ArrayLike, *, kappa: float = 1.0) -> tuple[Array, Array]:
    """K nodes that share their attention: (v* (K, m), z* (m,)) for ``mu`` (K, m), zeros allowed.

    z*_l = W(kappa sum_k mu_kl^2)/2 and v*_kl = mu_kl e^{-z*_l}.
    """
    where = "block_salience.rest_of_nodes"
    points = finite(where, "mu", mu)
    if points.ndim != 2 or points.size == 0:
        raise InputError(f"{where}: mu has shape {points.shape}; give (nodes, components).")
    _, scaled = scaled_points(where, np.linalg.norm(points, axis=0), kappa)
    half = 0.5 * lambert(np.square(scaled))
    return np.asarray(points * np.exp(-half)), half


def rest_of_linear_attention(mu: ArrayLike, c: ArrayLike) -> tuple[Array, Array]:
    """(v*, z*) under linear attention, z = sqrt(v^2 + c): v* z* = mu. Broadcasts; c not negative."""
    where = "block_salience.rest_of_linear_attention"
    points, offset = broadcast(where, mu=mu, c=c)
    if np.any(points == 0) or np.any(offset < 0):
        raise InputError(f"{where}: mu must not be 0 and c not be negative.")
    z = np.sqrt(0.5 * (offset + np.hypot(offset, 2 * points)))
    return np.asarray(points / z), z


# --- rates --------------------------------------------------------------------------------------


def convergence_rate(mu: ArrayLike, *, kappa: float = 1.0) -> Array:
    """(1 + W) e^W: the rate at which u ends in mu (Eq. 6: e^{kappa mu^2/2}), per unit of 1/eta_w."""
    _, scaled = scaled_points("block_salience.convergence_rate", mu, kappa)
    w = lambert(np.square(scaled))
    return np.asarray((1.0 + w) * np.exp(w))


def asymptotic_ratio(mu_j: ArrayLike, mu_k: ArrayLike, *, kappa: float = 1.0) -> Array:
    """The block's Theorem 4: the limit of (ln 1/delta_j)/(ln 1/delta_k), a ratio of rates; broadcasts."""
    j, k = broadcast("block_salience.asymptotic_ratio", mu_j=mu_j, mu_k=mu_k)
    return np.asarray(convergence_rate(j, kappa=kappa) / convergence_rate(k, kappa=kappa))


def linear_attention_rate(mu: ArrayLike, c: ArrayLike) -> Array:
    """sqrt(c^2 + 4 mu^2): the final rate under linear attention (printed: sqrt(mu^2 + c)); broadcasts."""
    points, offset = broadcast("block_salience.linear_attention_rate", mu=mu, c=c)
    return np.hypot(offset, 2 * points)


# --- the exact course ---------------------------------------------------------------------------


def elapsed_time(mu: ArrayLike, log_inverse_delta: ArrayLike, *, kappa: float = 1.0) -> Array:
    """The time at which ln 1/|1 - u/mu| reaches a value; broadcasts. See ``time_of_weight`` for v."""
    where = "block_salience.elapsed_time"
    points, wanted = broadcast(where, mu=mu, log_inverse_delta=log_inverse_delta)
    if np.any(wanted < 0):
        raise InputError(f"{where}: log_inverse_delta must not be negative; it is 0 at v = 0.")
    _, scaled = scaled_points(where, points, kappa)
    sizes, which = np.unique(scaled, return_inverse=True)
    times = np.empty(points.shape)
    for index, size in enumerate(sizes):
        mine = which.reshape(points.shape) == index
        times[mine] = _Clock(size).time(wanted[mine])
    return times


def time_of_weight(mu: ArrayLike, share: ArrayLike, *, kappa: float = 1.0) -> Array:
    """The time at which v has come to a ``share`` of its rest v*, 0 <= share < 1; broadcasts."""
    where = "block_salience.time_of_weight"
    points, shares = broadcast(where, mu=mu, share=share)
    if np.any((shares < 0) | (shares >= 1)):
        raise InputError(f"{where}: share must lie in [0, 1); rest is reached only at t = inf.")
    _, scaled = scaled_points(where, points, kappa)
    # u/mu = share exp((share^2 - 1) W/2)
    log_part = np.log(shares, out=np.full(shares.shape, -np.inf), where=shares > 0)
    part = log_part - 0.5 * (1 - shares) * (1 + shares) * lambert(np.square(scaled))
    return elapsed_time(points, -np.log(-np.expm1(part)), kappa=kappa)


def solve(mu: ArrayLike, times: ArrayLike, *, kappa: float = 1.0) -> BlockCourse:
    """The block flow from v(0) = 0, solved by quadrature and its inversion.

    Args:
        mu: (m,), none 0; sqrt(kappa) |mu| at most ``LARGEST``.
        times: (n,), not negative, in any order, in units of 1/eta_w.
        kappa: eta_z/(eta_w T^2), positive.

    The error is that of a relative error of some 1e-15 in ``times``.

    Raises:
        InputError: mu = 0, negative kappa, or times at which ln 1/delta is beyond float64.
    """
    where = "block_salience.solve"
    points, scaled = scaled_points(where, np.atleast_1d(numbers(where, "mu", mu)), kappa)
    if points.ndim != 1:
        raise InputError(f"{where}: mu has shape {points.shape}; give a vector.")
    t = np.atleast_1d(finite(where, "times", times))
    if t.ndim != 1 or np.any(t < 0):
        raise InputError(f"{where}: times must be a vector of numbers that are not negative.")
    with np.errstate(over="ignore"):
        course = np.stack([_Clock(m).position(t) for m in scaled], axis=-1)
    return BlockCourse(points, t, within_floats(where, course, "ask for earlier times"), kappa)


def weights_of_nodes(mu: ArrayLike, times: ArrayLike, *, kappa: float = 1.0) -> Array:
    """W of K nodes that share their attention, along the block flow from W = 0: (n, K, m) for ``mu`` (K, m).

    Every node stays in proportion to its mu_k, so the columns grow as one component of size |mu_l| does. The
    paper's remark on the rank of W (Sec. 4) is about this matrix.
    """
    where = "block_salience.weights_of_nodes"
    points = finite(where, "mu", mu)
    if points.ndim != 2 or points.size == 0:
        raise InputError(f"{where}: mu has shape {points.shape}; give (nodes, components).")
    size = np.linalg.norm(points, axis=0)
    return np.asarray(points * (solve(size, times, kappa=kappa).v / size)[:, None, :])


def solve_linear_attention_block(mu: ArrayLike, times: ArrayLike, *, c: ArrayLike) -> tuple[Array, Array]:
    """Linear attention in closed form, from v(0) = 0: (u, v), each (n, m), for mu > 0 and c > 0.

    u' = sqrt(c^2 + 4 u^2) (mu - u) is the printed flow with c^2/4 for c and 2t for t.
    """
    offset = finite("solve_linear_attention_block", "c", c)
    if np.any(offset <= 0):
        raise InputError("solve_linear_attention_block: c must be positive; at z = v = 0 nothing moves.")
    u = solve_linear_attention(mu, 2 * np.atleast_1d(np.asarray(times)), c=0.25 * offset * offset).v
    return u, np.asarray(u / np.sqrt(0.5 * (offset + np.hypot(offset, 2 * u))))


class _Clock:
    """Panels of L with the time at each of their ends, for one component of size m = sqrt(kappa) |mu|."""

    def __init__(self, m: float) -> None:
        self.m = m
        ends = [0.0]
        while ends[-1] < _SETTLED:
            ends.append(ends[-1] + min(0.4 * (ends[-1] + 0.6 / m), 1.0))
        self.ends = np.array(ends)
        self.spans = self._span(self.ends[:-1], np.diff(self.ends))
        self.times = np.concatenate([[0.0], np.cumsum(self.spans)])
        self.final = float(self.slowness(np.inf))

    def slowness(self, s: ArrayLike) -> Array:
        """dt/dL = e^{-w}/(1 + w)."""
        w = lambert(np.square(self.m * np.expm1(-np.asarray(s))))
        return np.asarray(np.exp(-w) / (1.0 + w))

    def _span(self, left: Array, width: Array) -> Array:
        inside = left[..., None] + width[..., None] * _POINTS
        return np.asarray((self.slowness(inside) @ _WEIGHTS) * width)

    def time(self, s: Array) -> Array:
        panel = np.clip(np.searchsorted(self.ends, s, side="right") - 1, 0, self.ends.size - 2)
        inside = np.minimum(s, self.ends[-1])
        beyond = self.final * np.maximum(s - self.ends[-1], 0.0)
        return np.asarray(
            self.times[panel] + self._span(self.ends[panel], inside - self.ends[panel]) + beyond
        )

    def position(self, t: Array) -> Array:
        """L at the times ``t``: Newton's steps within a panel, kept inside of it."""
        panel = np.clip(np.searchsorted(self.times, t, side="right") - 1, 0, self.ends.size - 2)
        left, width = self.ends[panel], np.diff(self.ends)[panel]
        elapsed = t - self.times[panel]
        step = np.clip(width * elapsed / self.spans[panel], 0.0, width)
        for _ in range(6):
            error = self._span(left, step) - elapsed
            step = np.clip(step - error / self.slowness(left + step), 0.0, width)
        late = np.maximum(t - self.times[-1], 0.0) / self.final
        return np.asarray(np.where(late > 0, self.ends[-1] + late, left + step))


def scaled_points(where: str, mu: ArrayLike, kappa: float) -> tuple[Array, Array]:
    """mu, and sqrt(kappa) |mu|, within bounds."""
    points = finite(where, "mu", mu)
    scaled = np.sqrt(positive(where, "kappa", kappa)) * np.abs(points)
    if points.size == 0:
        raise InputError(f"{where}: mu is empty; give at least one component.")
    if np.any(points == 0):
        raise InputError(f"{where}: a component of mu is 0, which never moves; leave it out.")
    if np.max(scaled) > LARGEST:
        raise InputError(f"{where}: sqrt(kappa) |mu| = {np.max(scaled):g}; give at most {LARGEST:g}.")
    return points, scaled

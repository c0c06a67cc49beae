"""The joint flow of lower-layer weights and attention logits, for any drift: the block's, and Eq. 6's.

    v_k' = a o Delta_k(u),    u_k = v_k o a,    z' = kappa sum_k v_k o v_k'    (exp: a = e^z)

z is the attention logit over the temperature T, kappa = eta_z/(eta_w T^2).
The attention ``a`` multiplies what is learned *and* what the gate reads. ``printed`` is Eq. 6: it multiplies
by a, but leaves the gate reading v. ``frozen`` keeps attention uniform, a = 1, whose rest the block shares.
In linear attention a = z and z' = kappa sum_k v_k o Delta_k; in softmax attention a = n softmax(z), the same
for all samples (the assumption of Theorem 1), and z' = kappa (s - a mean(s)), s = sum_k v_k o v_k'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from joma.core.arguments import Array, arrays, finite, positive, spread
from joma.core.errors import InputError, nearest
from joma.dynamics.integrator import Method, Parts, integrate, moments
from joma.theory.block_salience import BlockCourse, lambert, scaled_points
from joma.theory.drift import Drift

BlockAttention = Literal["exp", "linear", "softmax", "frozen", "printed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class JointTrajectory:
    """Weights, logits and biases along a joint flow (S moments, K nodes, n components)."""

    times: Array
    """(S,), in units of 1/eta_w."""
    v: Array
    """(S, K, n)."""
    logits: Array
    """``z`` (S, n)."""
    bias: Array
    """``xi`` (S, K)."""
    attention: BlockAttention

    @property
    def attended(self) -> Array:
        """``u``, what the gate reads, (S, K, n); under ``printed`` it reads v."""
        if self.attention == "printed":
            return self.v
        return np.asarray(self.v * _gain(self.attention, self.logits)[:, None, :])


def integrate_joint(
    drift: Drift,
    v0: ArrayLike,
    times: ArrayLike,
    *,
    attention: BlockAttention = "exp",
    kappa: float = 1.0,
    z0: ArrayLike = 0.0,
    bias: ArrayLike = 0.0,
    rtol: float = 1e-9,
    atol: float = 1e-11,
    method: Method = "LSODA",
    max_evaluations: int = 200_000,
) -> JointTrajectory:
    """Integrate (v, z, xi) from ``v0`` at time 0.

    Args:
        drift: Delta (``joma.theory.drift``).
        v0: (n,) for one node, or (K, n).
        times: (S,), rising, none negative.
        attention: how the logits act; see above.
        kappa: eta_z/(eta_w T^2), positive.
        z0: logits at the start, (n,) or one for all; linear attention needs them positive.
        bias: xi at the start, (K,) or one for all. Whether it moves is the drift's affair.
        rtol: relative tolerance of each step.
        atol: absolute tolerance of each step.
        method: of ``scipy.integrate.solve_ivp``; sampled drifts are steps, for which RK45 is best.
        max_evaluations: of the drift.

    Raises:
        InputError: shapes or values that make no sense.
        DivergenceError: the flow leaves the finite numbers.
        UnfinishedError: ``max_evaluations`` did not suffice.
    """
    where = "integrate_joint"
    if attention not in get_args(BlockAttention):
        raise InputError(
            f"{where}: attention = {attention!r} is unknown; {nearest(attention, get_args(BlockAttention))}"
        )
    (start,) = arrays(where, v0=(np.atleast_2d(finite(where, "v0", v0)), "K n"))
    nodes, size = start.shape
    rate, t = positive(where, "kappa", kappa), moments(where, times, from_zero=True)
    logits, xi0 = spread(where, "z0", z0, (size,)), spread(where, "bias", bias, (nodes,))
    if attention == "linear" and np.any(logits <= 0):
        raise InputError(f"{where}: linear attention needs z0 > 0; at z = v = 0 nothing moves.")
    parts = Parts((nodes, size), (size,), (nodes,))
    try:
        shapes = [np.shape(part) for part in drift(start, np.array(xi0))]
    except ValueError as error:
        raise InputError(f"{where}: the drift does not take v0 {start.shape}: {error}") from None
    if shapes != [start.shape, (nodes,)]:
        raise InputError(f"{where}: the drift returns {shapes}; give (K, n) and (K,) for v0 {start.shape}.")

    def velocity(_: float, state: Array) -> Array:
        v, z, xi = parts.unpack(state)
        a = _gain(attention, z)
        pull, push = drift(v if attention == "printed" else v * a, xi)
        moved = a * pull
        if attention == "frozen":
            turn = np.zeros(size)
        elif attention == "linear":
            turn = rate * (v * pull).sum(axis=0)
        else:
            turn = rate * (v * moved).sum(axis=0)
            if attention == "softmax":
                turn = turn - a * turn.mean()
        return parts.pack(moved, turn, push)

    found = integrate(
        where,
        velocity,
        parts.pack(start, logits, xi0),
        t,
        begin=0.0,
        method=method,
        rtol=rtol,
        atol=atol,
        max_evaluations=max_evaluations,
        advice="stop earlier or bring mu and kappa nearer to 1 (integrate_salience has no such limit)",
    )
    v, z, xi = parts.unpack(found.states)
    return JointTrajectory(times=found.times, v=v, logits=z, bias=xi, attention=attention)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttendedTrajectory:
    """One node of the block in its attended weight alone (S moments, n components)."""

    times: Array
    """(S,), in units of 1/eta_w."""
    attended: Array
    """u = v e^z (S, n)."""
    bias: Array
    """xi (S,)."""
    kappa: float

    @property
    def logits(self) -> Array:
        """z = kappa v^2/2 = W(kappa u^2)/2, (S, n)."""
        return 0.5 * lambert(self.kappa * np.square(self.attended))


def integrate_attended(
    drift: Drift,
    u0: ArrayLike,
    times: ArrayLike,
    *,
    kappa: float = 1.0,
    bias: float = 0.0,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    max_evaluations: int = 100_000,
) -> AttendedTrajectory:
    """The block with its attention integrated out: u' = (1 + w) e^w o Delta(u), w = W(kappa u^2), xi' the
    drift's.

    Theorem 1 (z = kappa v^2/2) in the place of the logits' own dynamics; whatever the drift, C (mu - u) or
    that of data. Arguments as of ``integrate_joint``, for one node, ``u0`` (n,), by LSODA.
    """
    where = "integrate_attended"
    (start,) = arrays(where, u0=(u0, "n"))
    rate, t = positive(where, "kappa", kappa), moments(where, times, from_zero=True)
    parts = Parts(start.shape, (1,))

    def velocity(_: float, state: Array) -> Array:
        u, xi = parts.unpack(state)
        w = lambert(rate * np.square(u))
        pull, push = drift(u[None], xi)
        return parts.pack((1.0 + w) * np.exp(w) * pull[0], push)

    course = integrate(
        where,
        velocity,
        parts.pack(start, np.array([bias])),
        t,
        begin=0.0,
        method="LSODA",
        rtol=rtol,
        atol=atol,
        max_evaluations=max_evaluations,
        advice="a sharp gate slides along its kinks: give its drift a width, or stop earlier",
    )
    u, xi = parts.unpack(course.states)
    return AttendedTrajectory(times=course.times, attended=u, bias=xi[:, 0], kappa=rate)


def integrate_salience(
    mu: ArrayLike, times: ArrayLike, *, kappa: float = 1.0, tolerance: float = 1e-11
) -> BlockCourse:
    """The block flow v' = (mu - v e^z) e^z, z = kappa v^2/2, from v(0) = 0, by DOP853 in L = ln 1/|1 - u/mu|.

    dL/dt = (1 + W) e^W with W = W(kappa u^2) only grows: no saturation and no stiffness, for sqrt(kappa) mu
    from far below 0.1 to beyond 1e6. Arguments as for ``joma.theory.block_salience.solve``, with
    ``times`` rising; ``tolerance`` is relative, of L per step.
    """
    where = "integrate_salience"
    points, scaled = scaled_points(where, mu, kappa)
    if points.ndim != 1:
        raise InputError(f"{where}: mu has shape {points.shape}; give a vector.")
    t = moments(where, times, from_zero=True)

    def velocity(_: float, s: Array) -> Array:
        w = lambert(np.square(scaled * np.expm1(-s)))
        return np.asarray((1.0 + w) * np.exp(w))

    found = integrate(
        where,
        velocity,
        np.zeros_like(points),
        t,
        begin=0.0,
        rtol=tolerance,
        atol=1e-3 * tolerance / np.maximum(scaled, 1.0),
        advice="ask for earlier times, or use joma.theory.block_salience.solve, which is exact",
    )
    return BlockCourse(points, t, found.states, kappa)


def _gain(attention: BlockAttention, logits: Array) -> Array:
    """``a``, one where attention is uniform."""
    if attention == "frozen":
        return np.ones_like(logits)
    if attention == "linear":
        return logits
    if attention == "softmax":
        return np.asarray(logits.shape[-1] * softmax(logits, axis=-1))
    return np.exp(logits)

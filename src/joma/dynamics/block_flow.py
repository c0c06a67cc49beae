"""The population gradient flow of the block (JoMA Eq. 2), for arbitrary data and back-propagated gradients.

Float64 and an adaptive Runge-Kutta method; many initial states at once along leading batch axes. The
integrals that the exact identities of Theorem 1 need are carried along as further components of the
state, so that they are as accurate as the flow itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from joma.core.arguments import check_broadcast, finite, positive
from joma.core.errors import InputError
from joma.dynamics.integrator import Method, Parts, integrate, moments
from joma.theory.attention import Array
from joma.theory.block import BackpropagatedGradient, Block, Embeddings


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """A course of training, by gradient flow or by discrete steps; the first axis is time (S moments)."""

    times: Array
    """(S,) flow time, or the number of steps done."""
    weights: Array
    """``w`` (S, ..., K, d)."""
    logits: Array
    """``z`` (S, ..., M)."""
    bias: Array
    """``xi`` (S, ..., K): integral (sum) of ``eta_w E[g_k h'_k]``, 0 at the start."""
    correction: Array
    """(S, ..., M): integral (sum) of ``eta_w sum_k E[g_k h'_k b (b . v_k)]``, 0 at the start (softmax)."""
    embeddings: Embeddings
    blow_up_time: float | None = None
    """When the state left every bound (flow only): the moments after it are missing."""

    @property
    def context_weights(self) -> Array:
        """``v = U_C' w`` (S, ..., K, M)."""
        return self.embeddings.read(self.weights)


@dataclass(frozen=True, eq=False)
class Problem:
    """The arguments of a training run, checked and brought to one batch shape."""

    frequencies: Array
    weights: Array
    logits: Array
    sample_weights: Array
    batch: tuple[int, ...]


def prepare(
    where: str,
    block: Block,
    frequencies: Array,
    gradient: BackpropagatedGradient,
    weights: Array,
    logits: Array,
    sample_weights: Array | None,
    rates: dict[str, float],
    start: float = 0.0,
) -> Problem:
    """Check what a flow or a descent is given; every error names the argument (``where``: the caller).

    ``start`` is the initial time, handed to a ``gradient`` that is a function.
    """
    x, w = finite(where, "frequencies", frequencies), finite(where, "weights", weights)
    z = finite(where, "logits", logits)
    m, d = block.tokens, block.embeddings.dimension
    if x.ndim < 2 or x.shape[-1] != m:
        raise InputError(f"{where}: frequencies {x.shape} must be (..., samples, {m} tokens).")
    if w.ndim < 2 or w.shape[-1] != d:
        raise InputError(f"{where}: weights {w.shape} must be (..., hidden units, {d} dimensions).")
    if z.ndim < 1 or z.shape[-1] != m:
        raise InputError(f"{where}: logits {z.shape} must be (..., {m} tokens).")
    n, k = x.shape[-2], w.shape[-2]
    p = np.full(n, 1.0 / n) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
    if p.shape[-1:] != (n,) or (p < 0).any() or not np.allclose(p.sum(axis=-1), 1.0, rtol=0, atol=1e-9):
        raise InputError(
            f"{where}: sample_weights {p.shape} must be probabilities of the {n} samples: none negative, "
            "sum 1."
        )
    if block.attention.kind == "softmax" and (x < 0).any():
        raise InputError(f"{where}: a frequency is negative ({x.min():.3g}); softmax attention needs x >= 0.")
    for name, rate in rates.items():
        positive(where, name, rate, zero=True)
    shapes = {
        "frequencies": x.shape[:-2],
        "weights": w.shape[:-2],
        "logits": z.shape[:-1],
        "sample_weights": p.shape[:-1],
    }
    check_broadcast(where, **shapes)
    batch = np.broadcast_shapes(*shapes.values())
    w, z = np.broadcast_to(w, (*batch, k, d)), np.broadcast_to(z, (*batch, m))
    # A function is called once here, so that a wrong shape is told now rather than in the midst of it.
    g = gradient(start, block.forward(x, w, z)) if callable(gradient) else np.asarray(gradient)
    if np.shape(g)[-2:] != (n, k) or not np.isfinite(g).all():
        raise InputError(
            f"{where}: gradient {np.shape(g)} must be finite, (..., {n} samples, {k} hidden units)."
        )
    check_broadcast(where, the_rest=batch, gradient=g.shape[:-2])
    batch = np.broadcast_shapes(batch, g.shape[:-2])
    w, z = np.broadcast_to(w, (*batch, k, d)), np.broadcast_to(z, (*batch, m))
    return Problem(x, w.copy(), z.copy(), p, batch)


def solve(
    block: Block,
    frequencies: Array,
    gradient: BackpropagatedGradient,
    *,
    weights: Array,
    logits: Array,
    times: Sequence[float] | Array,
    sample_weights: Array | None = None,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    rtol: float = 1e-11,
    atol: float = 1e-13,
    method: Method = "DOP853",
    speed_limit: float = 1e9,
    max_evaluations: int = 100_000,
) -> Trajectory:
    """Integrate ``dw_k/dt = eta_w E[g_k h'_k f]``, ``dz/dt = eta_z E[L' U_C' sum_k g_k h'_k w_k]``.

    Args:
        block: the block of Eq. 1.
        frequencies: ``x`` (N, M) or (..., N, M), the samples (with the query m).
        gradient: ``g`` (..., N, K), constant, or a function of time and
            ``Activity`` (``CrossEntropyGradient``).
        weights: ``w(t_0)`` (..., K, d).
        logits: ``z(t_0)`` (..., M).
        times: increasing, at least two; the first is the initial time ``t_0``.
        sample_weights: probabilities of the samples, (N,) or (..., N); uniform if left out.
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``; 0 freezes attention.
        rtol: relative tolerance of each step. The method controls the root mean square over the whole
            state; it is tightened by the root of the batch's size, so that no member hides in the batch.
        atol: absolute tolerance of each step, tightened likewise.
        method: of ``scipy.integrate.solve_ivp``.
        speed_limit: the flow has blown up when a component's rate of change exceeds this (per unit of
            time). The whole batch then stops; its members share their time steps.
        max_evaluations: of Eq. 2, in all. A flow that needs more of them slides along the kink of its
            activation (ReLU, leaky): from both sides it is driven towards the kink, where no derivative
            exists; ``smooth_relu`` with method ``Radau`` follows it.

    Returns:
        The moments before the blow-up, and ``blow_up_time`` if there was one. With exp attention and
        constant ``g`` the event precedes the singularity by less than 1 / ``speed_limit``.

    Raises:
        InputError: shapes, probabilities or times that cannot be used.
        UnfinishedError: ``max_evaluations`` did not suffice.
        DivergenceError: the integration failed otherwise.
    """
    where = "block_flow.solve"
    rates = {"weight_rate": weight_rate, "attention_rate": attention_rate}
    t = moments(where, times, least=2)
    problem = prepare(
        where, block, frequencies, gradient, weights, logits, sample_weights, rates, float(t[0])
    )
    z_shape = problem.logits.shape
    parts = Parts(problem.weights.shape, z_shape, problem.weights.shape[:-1], z_shape)

    def velocity(time: float, state: Array) -> Array:
        w, z, _, _ = parts.unpack(state)
        step = block.directions(
            problem.frequencies, w, z, gradient, sample_weights=problem.sample_weights, time=time
        )
        return parts.pack(
            weight_rate * step.weights,
            attention_rate * step.logits,
            weight_rate * step.bias,
            weight_rate * step.correction,
        )

    found = integrate(
        where,
        velocity,
        parts.pack(problem.weights, problem.logits, 0.0, 0.0),
        t,
        method=method,
        rtol=rtol,
        atol=atol,
        members=prod(problem.batch),
        speed_limit=speed_limit,
        max_evaluations=max_evaluations,
        advice="a kinked activation may slide along its kink: round it (smooth_relu), or stop earlier",
    )
    w, z, xi, q = parts.unpack(found.states)
    return Trajectory(
        times=found.times,
        weights=w,
        logits=z,
        bias=xi,
        correction=q,
        embeddings=block.embeddings,
        blow_up_time=found.blow_up_time,
    )

"""The population gradient flow of the block (JoMA Eq. 2), for arbitrary data and back-propagated gradients.

Float64 and an adaptive Runge-Kutta method; many initial states at once along leading batch axes. The
integrals that the exact identities of Theorem 1 need are carried along as further components of the
state, so that they are as accurate as the flow itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from scipy.integrate import solve_ivp

from joma.errors import DivergenceError, InputError, UnfinishedError
from joma.theory.attention import Array
from joma.theory.block import BackpropagatedGradient, Block, Embeddings

Method = Literal["DOP853", "RK45", "LSODA", "Radau", "BDF"]


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
    x = np.asarray(frequencies, dtype=np.float64)
    w = np.asarray(weights, dtype=np.float64)
    z = np.asarray(logits, dtype=np.float64)
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
    for name, array in (("frequencies", x), ("weights", w), ("logits", z)):
        if not np.isfinite(array).all():
            raise InputError(f"{where}: {name} holds a value that is not finite; give finite numbers.")
    if block.attention.kind == "softmax" and (x < 0).any():
        raise InputError(f"{where}: a frequency is negative ({x.min():.3g}); softmax attention needs x >= 0.")
    for name, rate in rates.items():
        if not (np.isfinite(rate) and rate >= 0):
            raise InputError(f"{where}: {name} = {rate!r} must be a finite number, at least 0.")
    shapes = {
        "frequencies": x.shape[:-2],
        "weights": w.shape[:-2],
        "logits": z.shape[:-1],
        "sample_weights": p.shape[:-1],
    }
    batch = _common_batch(where, shapes)
    w, z = np.broadcast_to(w, (*batch, k, d)), np.broadcast_to(z, (*batch, m))
    # A function is called once here, so that a wrong shape is told now rather than in the midst of it.
    g = gradient(start, block.forward(x, w, z)) if callable(gradient) else np.asarray(gradient)
    if np.shape(g)[-2:] != (n, k) or not np.isfinite(g).all():
        raise InputError(
            f"{where}: gradient {np.shape(g)} must be finite, (..., {n} samples, {k} hidden units)."
        )
    batch = _common_batch(where, {"the rest": batch, "gradient": g.shape[:-2]})
    w, z = np.broadcast_to(w, (*batch, k, d)), np.broadcast_to(z, (*batch, m))
    return Problem(x, w.copy(), z.copy(), p, batch)


def _common_batch(where: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"{where}: the batch axes of {listed} do not broadcast; make them agree.") from None


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
            :class:`~joma.theory.block.Activity` (:class:`~joma.theory.block.CrossEntropyGradient`).
        weights: ``w(t_0)`` (..., K, d).
        logits: ``z(t_0)`` (..., M).
        times: increasing, at least two; the first is the initial time ``t_0``.
        sample_weights: probabilities of the samples, (N,) or (..., N); uniform if left out.
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``; 0 freezes attention.
        rtol: relative tolerance of each step. The method controls the root mean square over the whole
            state; it is tightened by the root of the batch's size, so that no member hides in the batch.
        atol: absolute tolerance of each step, tightened likewise.
        method: of :func:`scipy.integrate.solve_ivp`.
        speed_limit: the flow has blown up when a component's rate of change exceeds this (per unit of
            time). The whole batch then stops; its members share their time steps.
        max_evaluations: of Eq. 2, in all. A flow that needs more of them slides along the kink of its
            activation (ReLU, leaky): from both sides it is driven towards the kink, where no derivative
            exists; :func:`~joma.theory.activation.smooth_relu` with method ``Radau`` follows it.

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
    t = np.asarray(times, dtype=np.float64)
    if t.ndim != 1 or len(t) < 2 or not np.isfinite(t).all() or (np.diff(t) <= 0).any():
        raise InputError(f"{where}: times must be finite and increasing, at least two; got {t!r:.80}.")
    problem = prepare(
        where, block, frequencies, gradient, weights, logits, sample_weights, rates, float(t[0])
    )
    batch, members = problem.batch, prod(problem.batch)
    k, d = problem.weights.shape[-2:]
    m = block.tokens
    ends = np.cumsum([members * k * d, members * m, members * k, members * m])

    def unpack(state: Array) -> tuple[Array, Array, Array, Array]:
        w, z, xi, q = np.split(state, ends[:-1], axis=0)
        tail = state.shape[1:]
        return (
            w.reshape(*batch, k, d, *tail),
            z.reshape(*batch, m, *tail),
            xi.reshape(*batch, k, *tail),
            q.reshape(*batch, m, *tail),
        )

    evaluations = 0

    def rate_of_change(time: float, state: Array) -> Array:
        nonlocal evaluations
        evaluations += 1
        if evaluations > max_evaluations:
            raise UnfinishedError(
                f"{where}: max_evaluations = {max_evaluations} were spent at t = {time:.6g} of {t[-1]:.6g}; "
                "a kinked activation may slide along its kink: round it (smooth_relu), or stop earlier."
            )
        w, z, _, _ = unpack(state)
        try:
            step = block.directions(
                problem.frequencies, w, z, gradient, sample_weights=problem.sample_weights, time=time
            )
        except DivergenceError:
            # A trial step beyond the blow-up: infinite speed makes the method take a shorter one.
            return np.full_like(state, np.inf)
        return np.concatenate(
            [
                weight_rate * np.broadcast_to(step.weights, w.shape).ravel(),
                attention_rate * np.broadcast_to(step.logits, z.shape).ravel(),
                weight_rate * np.broadcast_to(step.bias, (*batch, k)).ravel(),
                weight_rate * np.broadcast_to(step.correction, z.shape).ravel(),
            ]
        )

    def headroom(time: float, state: Array) -> float:
        fastest = np.abs(rate_of_change(time, state)).max()
        return float(np.log(speed_limit) - np.log(min(max(fastest, 1e-300), 1e300)))

    headroom.terminal = True  # type: ignore[attr-defined]  # how solve_ivp is told to stop
    start = np.concatenate(
        [problem.weights.ravel(), problem.logits.ravel(), np.zeros(members * k), np.zeros(members * m)]
    )
    share = np.sqrt(members)
    with np.errstate(over="ignore", invalid="ignore"):
        solution = solve_ivp(
            rate_of_change,
            (t[0], t[-1]),
            start,
            method=method,
            t_eval=t,
            events=headroom,
            rtol=max(rtol / share, 3e-14),
            atol=atol / share,
        )
    if not solution.success or not np.isfinite(solution.y).all():
        raise DivergenceError(
            f"{where}: the integration stopped at t = {solution.t[-1:]}: {solution.message}"
        )
    w, z, xi, q = (np.moveaxis(part, -1, 0) for part in unpack(solution.y))
    ended = solution.t_events[0] if solution.t_events else np.empty(0)
    blow_up = float(ended[0]) if ended.size else None
    return Trajectory(
        times=solution.t,
        weights=w,
        logits=z,
        bias=xi,
        correction=q,
        embeddings=block.embeddings,
        blow_up_time=blow_up,
    )

"""The flow with attention integrated out, and the forecast: the course of attention without training it.

Theorem 1 makes the attention logits a function of the MLP weights, so that the flow of both (Eq. 2,
``joma.dynamics.block_flow``) closes on the weights alone: "we don't need to explicitly update
self-attention" (JoMA Sec. 3). For linear and exp attention that is exact, for any data, gradients and
activation. For softmax attention it is an approximation, in one of three forms:

signed
    Eq. 18 with the initial mean attention ``bbar``. First-order right in the spread of the samples only if
    ``E[g_k h'_k] = 0``.
corrected
    the leading-order formula with the term that Eq. 17 drops
    (``joma.theory.invariants.softmax_logits``), still with the initial ``bbar``.
moving
    the same, with ``bbar`` as it moves: ``dz/dt = (eta_z/T) sum_k [v_k d_k - bbar (v_k.d_k) - (d_k - xi_k'
    bbar)(bbar.v_k)]``, ``d_k = E[g_k h'_k b]``. The logits are carried along, but only *means* over the
    samples enter; the one thing neglected is ``E[g_k h'_k db db'] v_k`` with ``db = b - bbar``.

Embeddings must be orthonormal to each other and to the query's (Theorem 1). Float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal, get_args

import numpy as np

from joma.core.errors import InputError, nearest
from joma.dynamics import block_flow
from joma.dynamics.block_flow import Trajectory, prepare
from joma.dynamics.integrator import Method, Parts, integrate, moments
from joma.theory.attention import Array
from joma.theory.block import BackpropagatedGradient, Block
from joma.theory.invariants import logit_coefficient, predict_logits, softmax_logits

SoftmaxClosure = Literal["signed", "corrected", "moving"]


def solve(
    block: Block,
    frequencies: Array,
    gradient: BackpropagatedGradient,
    *,
    weights: Array,
    logits: Array,
    times: Sequence[float] | Array,
    softmax: SoftmaxClosure = "moving",
    sample_weights: Array | None = None,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    rtol: float = 1e-11,
    atol: float = 1e-13,
    method: Method = "DOP853",
    speed_limit: float = 1e9,
    max_evaluations: int = 100_000,
) -> Trajectory:
    """Integrate the weights alone; the logits of the result are Theorem 1's.

    Arguments, shapes and errors are those of ``joma.dynamics.block_flow.solve``; ``softmax`` chooses the
    closure for softmax attention and is ignored otherwise. ``weight_rate`` and ``attention_rate`` must be
    above 0.

    Raises:
        InputError: as there; embeddings that are not orthonormal; linear attention whose sign the weights
            leave open, ``z(0)^2 < (eta_z/eta_w) sum_k v_k(0)^2``.
        UnfinishedError: ``max_evaluations`` did not suffice (a stiff or a kinked flow).
        DivergenceError: the integration failed otherwise than by a blow-up.
    """
    where = "reduced_flow.solve"
    if softmax not in get_args(SoftmaxClosure):
        raise InputError(
            f"{where}: softmax = {softmax!r} is unknown; {nearest(softmax, get_args(SoftmaxClosure))}"
        )
    rates = {"weight_rate": weight_rate, "attention_rate": attention_rate}
    logit_coefficient(block.attention, **rates)
    _check_orthonormal(block)
    t = moments(where, times, least=2)
    problem = prepare(
        where, block, frequencies, gradient, weights, logits, sample_weights, rates, float(t[0])
    )
    closure = _Closure(block, problem, softmax, weight_rate, attention_rate)
    z_shape = problem.logits.shape
    parts = Parts(problem.weights.shape, problem.weights.shape[:-1], z_shape, z_shape)

    def velocity(time: float, state: Array) -> Array:
        w, xi, carried, _ = parts.unpack(state)
        z = closure.logits(w, xi, carried)
        step = block.directions(
            problem.frequencies, w, z, gradient, sample_weights=problem.sample_weights, time=time
        )
        return parts.pack(
            weight_rate * step.weights,
            weight_rate * step.bias,
            closure.carry(w, z, step.weights, step.bias),
            weight_rate * step.correction,
        )

    found = integrate(
        where,
        velocity,
        parts.pack(problem.weights, 0.0, problem.logits, 0.0),
        t,
        method=method,
        rtol=rtol,
        atol=atol,
        members=prod(problem.batch),
        speed_limit=speed_limit,
        # Not of the correction: it runs away with the square of the others' speed, and would stop early.
        watched=int(parts.ends[2]),
        max_evaluations=max_evaluations,
        advice="stop earlier, loosen rtol, or take a method for stiff equations",
    )
    w, xi, carried, correction = parts.unpack(found.states)
    return Trajectory(
        times=found.times,
        weights=w,
        logits=closure.logits(w, xi, carried),
        bias=xi,
        correction=correction,
        embeddings=block.embeddings,
        blow_up_time=found.blow_up_time,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """The course of attention as the reduced flow has it beside the one that training took (S moments)."""

    predicted: Trajectory
    trained: Trajectory
    predicted_shares: Array
    """Each sample's attention as shares of its sum, (S, ..., N, M)."""
    trained_shares: Array

    @property
    def times(self) -> Array:
        """(S,)."""
        return self.trained.times

    @property
    def logit_error(self) -> Array:
        """``|zhat - z| / |z - z(0)|`` (S, ...): what a correlation hides. 0 where nothing has moved."""
        moved = np.linalg.norm(self.trained.logits - self.trained.logits[0], axis=-1)
        gap = np.linalg.norm(self.predicted.logits - self.trained.logits, axis=-1)
        return np.asarray(np.divide(gap, moved, out=np.zeros_like(gap), where=moved > 0))

    @property
    def logit_correlation(self) -> Array:
        """Normalised correlation of how far both moved the logits, (S, ...), in [-1, 1]; 1 at rest."""
        one = self.predicted.logits - self.predicted.logits[0]
        two = self.trained.logits - self.trained.logits[0]
        size = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
        inner = (one * two).sum(axis=-1)
        return np.asarray(np.divide(inner, size, out=np.ones_like(size), where=size > 0))

    @property
    def attention_gap(self) -> Array:
        """Total variation distance of both attentions, the largest over the samples; (S, ...), in [0, 1]."""
        return np.asarray(0.5 * np.abs(self.predicted_shares - self.trained_shares).sum(axis=-1).max(axis=-1))

    @property
    def attention_moved(self) -> Array:
        """How far training itself has moved attention, in the same unit as ``attention_gap``."""
        return np.asarray(
            0.5 * np.abs(self.trained_shares - self.trained_shares[0]).sum(axis=-1).max(axis=-1)
        )


def forecast(
    block: Block,
    frequencies: Array,
    gradient: BackpropagatedGradient,
    *,
    weights: Array,
    logits: Array,
    times: Sequence[float] | Array,
    softmax: SoftmaxClosure = "moving",
    sample_weights: Array | None = None,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    rtol: float = 1e-11,
    method: Method = "DOP853",
) -> Forecast:
    """Predict the whole course of attention by the reduced flow alone, and train to see whether it is right.

    Arguments as for ``solve``. If either flow blows up, both are cut to the moments before. Linear
    attention has scores of either sign; their shares are of the sum of sizes.
    """
    predicted, trained = (
        flow(
            block,
            frequencies,
            gradient,
            weights=weights,
            logits=logits,
            times=times,
            sample_weights=sample_weights,
            weight_rate=weight_rate,
            attention_rate=attention_rate,
            rtol=rtol,
            method=method,
        )
        for flow in (partial(solve, softmax=softmax), block_flow.solve)
    )
    both = min(len(predicted.times), len(trained.times))
    predicted, trained = _cut(predicted, both), _cut(trained, both)
    return Forecast(
        predicted=predicted,
        trained=trained,
        predicted_shares=_shares(block, frequencies, predicted.logits),
        trained_shares=_shares(block, frequencies, trained.logits),
    )


class _Closure:
    """Logits out of weights: exactly for linear and exp attention, by one of the closures for softmax."""

    def __init__(
        self,
        block: Block,
        problem: block_flow.Problem,
        softmax: SoftmaxClosure,
        weight_rate: float,
        attention_rate: float,
    ) -> None:
        self.block, self.problem, self.softmax = block, problem, softmax
        self.weight_rate, self.attention_rate = weight_rate, attention_rate
        self.start = block.embeddings.read(problem.weights)
        self.is_softmax = block.attention.kind == "softmax"
        self.carries = self.is_softmax and softmax == "moving"
        self.mean = self.mean_scores(problem.logits) if self.is_softmax else None
        self.logits(problem.weights, np.zeros(problem.weights.shape[:-1]), problem.logits)  # decided signs?

    def mean_scores(self, logits: Array) -> Array:
        scores = self.block.attention.scores(self.problem.frequencies, logits)
        return np.asarray(np.einsum("...n,...nm->...m", self.problem.sample_weights, scores))

    def logits(self, weights: Array, bias: Array, carried: Array) -> Array:
        if self.carries:
            return carried
        v = self.block.embeddings.read(weights)
        if self.mean is None:
            return predict_logits(
                self.block.attention,
                v,
                initial_context_weights=self.start,
                initial_logits=self.problem.logits,
                weight_rate=self.weight_rate,
                attention_rate=self.attention_rate,
            )
        return softmax_logits(
            v,
            self.mean,
            initial_context_weights=self.start,
            initial_logits=self.problem.logits,
            form="signed" if self.softmax == "signed" else "corrected",
            bias=bias,
            temperature=self.block.attention.temperature,
            weight_rate=self.weight_rate,
            attention_rate=self.attention_rate,
        )

    def carry(self, weights: Array, logits: Array, ascent: Array, bias: Array) -> Array:
        """``dz/dt`` of the moving closure; 0 where the logits need no carrying."""
        if not self.carries:
            return np.zeros_like(logits)
        mean = self.mean_scores(logits)[..., None, :]
        v, d = self.block.embeddings.read(weights), self.block.embeddings.read(ascent)
        along = (v * mean).sum(axis=-1, keepdims=True)
        change = v * d - mean * (v * d).sum(axis=-1, keepdims=True) - (d - bias[..., None] * mean) * along
        return np.asarray(self.attention_rate / self.block.attention.temperature * change.sum(axis=-2))


def _check_orthonormal(block: Block) -> None:
    embeddings = block.embeddings
    if embeddings.is_standard:
        return
    gap = np.abs(embeddings.context.T @ embeddings.context - np.eye(embeddings.tokens)).max()
    overlap = np.abs(embeddings.context.T @ embeddings.query).max()
    if max(gap, overlap) > 1e-10:
        raise InputError(
            f"reduced_flow.solve: embeddings are not orthonormal to each other (off by {gap:.3g}) and to the "
            f"query's ({overlap:.3g}), so attention cannot be integrated out; see joma.theory.coherence."
        )


def _cut(trajectory: Trajectory, kept: int) -> Trajectory:
    along = ("times", "weights", "logits", "bias", "correction")
    return replace(trajectory, **{name: getattr(trajectory, name)[:kept] for name in along})


def _shares(block: Block, frequencies: Array, logits: Array) -> Array:
    scores = np.abs(block.attention.scores(frequencies, logits))
    total = scores.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(scores, total, out=np.zeros_like(scores), where=total > 0))

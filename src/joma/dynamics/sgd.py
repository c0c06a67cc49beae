"""The block trained by discrete simultaneous steps: gradient descent, momentum, Adam, weight decay.

Weights and logits move at once, from gradients at the same state and on the same batch. All axes before
the last two are batch axes: seeds train side by side, in one array operation per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from joma.core.errors import DivergenceError, InputError, nearest
from joma.dynamics.block_flow import Trajectory, prepare
from joma.theory.attention import Array
from joma.theory.block import BackpropagatedGradient, Block

OptimizerKind = Literal["sgd", "momentum", "nesterov", "adam"]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How an ascent direction becomes a step; PyTorch's conventions (dampening 0)."""

    kind: OptimizerKind = "sgd"
    momentum: float = 0.9
    """``beta`` of momentum and nesterov: buffer = beta * buffer + direction."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the first and second moment."""
    epsilon: float = 1e-8
    """Adam's, added to the root of the second moment."""
    weight_decay: float = 0.0
    """``lambda`` >= 0: the direction is reduced by ``lambda`` times the parameter before all else (L2)."""
    decoupled: bool = False
    """Decay the parameter itself by ``rate * lambda`` instead (AdamW; with sgd it is the same thing)."""
    decay_logits: bool = True
    """Whether the attention logits decay too, or the MLP weights alone."""

    def __post_init__(self) -> None:
        kinds = ("sgd", "momentum", "nesterov", "adam")
        if self.kind not in kinds:
            raise InputError(f"Optimizer: kind {self.kind!r} is unknown; {nearest(str(self.kind), kinds)}")
        for name, value in (("momentum", self.momentum), ("betas", self.betas[0]), ("betas", self.betas[1])):
            if not 0 <= value < 1:
                raise InputError(f"Optimizer: {name} holds {value!r}; give numbers in [0, 1).")
        if not (self.weight_decay >= 0 and self.epsilon >= 0):
            raise InputError(
                f"Optimizer: weight_decay = {self.weight_decay!r} and epsilon = {self.epsilon!r} must be at "
                "least 0."
            )


class Snapshot(NamedTuple):
    """What an observer sees: the state before a step (or at the end)."""

    step: int
    weights: Array
    """``w`` (..., K, d); do not write to it."""
    logits: Array
    """``z`` (..., M); do not write to it."""
    context_weights: Array
    """``v`` (..., K, M)."""
    bias: Array
    correction: Array
    squared_weight_steps: Array
    squared_logit_steps: Array
    buffers: Mapping[str, Array]
    """The optimizer's own: ``weights.first``, ``logits.first`` (momentum, Adam), ``....second`` (Adam)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Descent(Trajectory):
    """A ``Trajectory`` of discrete steps, with what makes its drift exact."""

    squared_weight_steps: Array
    """(S, ..., M): ``sum_s sum_k (Delta v_k(s))^2`` up to each record."""
    squared_logit_steps: Array
    """(S, ..., M): ``sum_s (Delta z(s))^2`` up to each record."""
    observed_steps: Array
    """The steps at which ``observe`` was called."""
    observed: Mapping[str, Array]
    """What ``observe`` returned, stacked: name -> (len(observed_steps), ...)."""


def train(
    block: Block,
    frequencies: Array,
    gradient: BackpropagatedGradient,
    *,
    weights: Array,
    logits: Array,
    steps: int,
    weight_rate: float,
    attention_rate: float,
    optimizer: Optimizer | None = None,
    sample_weights: Array | Callable[[int], Array] | None = None,
    record_every: int = 1,
    observe: Callable[[Snapshot], Mapping[str, Array]] | None = None,
    observe_every: int = 1,
) -> Descent:
    """Train ``w`` and ``z`` at once by discrete steps that ascend Eq. 9 (descend minus it).

    Args:
        block: the block of Eq. 1.
        frequencies: ``x`` (N, M) or (..., N, M).
        gradient: ``g`` (..., N, K), constant, or a function of the step's number and
            ``Activity``.
        weights: ``w(0)`` (..., K, d).
        logits: ``z(0)`` (..., M).
        steps: how many.
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``.
        optimizer: plain gradient descent if left out.
        sample_weights: probabilities of the samples, (N,) or (..., N), or a function of the step's number
            that returns them (``minibatches``); uniform if left out.
        record_every: keep the state every so many steps; the first and the last are always kept.
        observe: called with a ``Snapshot``; its arrays are stacked. For what is wanted more often
            than the whole state fits in memory.
        observe_every: how often ``observe`` is called, in steps; at the end too.

    Returns:
        ``bias`` and ``correction`` sum ``eta_w`` times Eq. 2's directions, whatever the optimizer does with
        them; ``squared_*_steps`` sum the steps really taken.

    Raises:
        InputError: shapes, probabilities or numbers that cannot be used.
        DivergenceError: the state left the finite numbers, at the step named.
    """
    where = "sgd.train"
    for name, value in (("steps", steps), ("record_every", record_every), ("observe_every", observe_every)):
        if value < 1:
            raise InputError(f"{where}: {name} = {value} must be at least 1.")
    distribution = sample_weights if callable(sample_weights) else None
    problem = prepare(
        where,
        block,
        frequencies,
        gradient,
        weights,
        logits,
        sample_weights(0) if callable(sample_weights) else sample_weights,
        {"weight_rate": weight_rate, "attention_rate": attention_rate},
        0.0,
    )
    w, z = problem.weights, problem.logits
    batch, m = problem.batch, block.tokens
    bias, correction = np.zeros(w.shape[:-1]), np.zeros((*batch, m))
    squared_v, squared_z = np.zeros((*batch, m)), np.zeros((*batch, m))
    rule = optimizer or Optimizer()
    move_weights = _Mover(rule, weight_rate, rule.weight_decay)
    move_logits = _Mover(rule, attention_rate, rule.weight_decay if rule.decay_logits else 0.0)

    records: list[tuple[int, Array, Array, Array, Array, Array, Array]] = []
    seen: list[tuple[int, Mapping[str, Array]]] = []
    for s in range(steps + 1):
        last = s == steps
        if last or s % record_every == 0:
            records.append((s, w, z, bias, correction, squared_v, squared_z))
        if observe is not None and (last or s % observe_every == 0):
            buffers = {**move_weights.buffers("weights"), **move_logits.buffers("logits")}
            v = block.embeddings.read(w)
            seen.append((s, observe(Snapshot(s, w, z, v, bias, correction, squared_v, squared_z, buffers))))
        if last:
            break
        p = problem.sample_weights if distribution is None else distribution(s)
        ascent = block.directions(problem.frequencies, w, z, gradient, sample_weights=p, time=float(s))
        delta_w, delta_z = move_weights(w, ascent.weights), move_logits(z, ascent.logits)
        if not (np.isfinite(delta_w).all() and np.isfinite(delta_z).all()):
            raise DivergenceError(f"{where}: the state diverged at step {s}; take smaller rates.")
        w, z = w + delta_w, z + delta_z
        bias = bias + weight_rate * ascent.bias
        correction = correction + weight_rate * ascent.correction
        squared_v = squared_v + np.square(block.embeddings.read(delta_w)).sum(axis=-2)
        squared_z = squared_z + np.square(delta_z)
    columns = [np.stack(column) for column in zip(*(record[1:] for record in records), strict=True)]
    return Descent(
        times=np.array([record[0] for record in records], dtype=np.float64),
        weights=columns[0],
        logits=columns[1],
        bias=columns[2],
        correction=columns[3],
        embeddings=block.embeddings,
        squared_weight_steps=columns[4],
        squared_logit_steps=columns[5],
        observed_steps=np.array([step for step, _ in seen], dtype=np.float64),
        observed={
            name: np.stack([values[name] for _, values in seen]) for name in (seen[0][1] if seen else ())
        },
    )


def minibatches(samples: int, size: int, *, seed: int) -> Callable[[int], Array]:
    """Sample weights for ``train``: each step, ``size`` of the samples, drawn without replacement.

    The draw depends on the seed and the step alone, so that a run can be repeated or resumed anywhere.
    """
    if not 1 <= size <= samples:
        raise InputError(f"minibatches: size = {size} must be 1 to {samples}, the number of samples.")

    def weights(step: int) -> Array:
        drawn = np.random.default_rng([seed, step]).permutation(samples)[:size]
        p = np.zeros(samples)
        p[drawn] = 1.0 / size
        return p

    return weights


class _Mover:
    """One parameter's optimizer: its ascent direction in, its step out."""

    def __init__(self, rule: Optimizer, rate: float, decay: float) -> None:
        self.rule, self.rate, self.decay = rule, rate, decay
        self.first: Array | None = None
        self.second: Array | None = None
        self.count = 0

    def __call__(self, parameter: Array, direction: Array) -> Array:
        decay = self.decay * parameter if self.decay else 0.0
        if self.rule.decoupled:
            return self.rate * (self._smooth(direction) - decay)
        return self.rate * self._smooth(direction - decay)

    def _smooth(self, direction: Array) -> Array:
        rule = self.rule
        if rule.kind == "sgd":
            return direction
        if self.first is None:
            self.first = np.zeros_like(direction)
        if rule.kind != "adam":
            self.first = rule.momentum * self.first + direction
            return direction + rule.momentum * self.first if rule.kind == "nesterov" else self.first
        if self.second is None:
            self.second = np.zeros_like(direction)
        self.count += 1
        b1, b2 = rule.betas
        self.first = b1 * self.first + (1 - b1) * direction
        self.second = b2 * self.second + (1 - b2) * direction * direction
        root = np.sqrt(self.second / (1 - b2**self.count)) + rule.epsilon
        # With epsilon 0, a component that never had a gradient would be 0 / 0: it stays where it is.
        return np.divide(self.first / (1 - b1**self.count), root, out=np.zeros_like(root), where=root > 0)

    def buffers(self, name: str) -> dict[str, Array]:
        parts = {"first": self.first, "second": self.second}
        return {f"{name}.{key}": value for key, value in parts.items() if value is not None}

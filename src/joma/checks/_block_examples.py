"""The flows and descents that the claims of Theorem 1 are tested on."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from joma.dynamics import block_flow, sgd
from joma.dynamics.block_flow import Trajectory
from joma.theory import invariants
from joma.theory.activation import activation
from joma.theory.attention import Array, Attention, AttentionKind
from joma.theory.block import Activity, Block, CrossEntropyGradient, Embeddings

SAMPLES, TOKENS, UNITS = 6, 5, 4
TIMES = np.linspace(0.0, 2.0, 9)


class Rates(TypedDict):
    """Learning rates of the weights and of the attention."""

    weight_rate: float
    attention_rate: float


UNEQUAL: Rates = {"weight_rate": 2.0, "attention_rate": 0.3}


class Wave:
    """A back-propagated gradient that depends on time and on the state: nothing is assumed stationary."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.amplitude, self.phase = rng.normal(size=(2, SAMPLES, UNITS))

    def __call__(self, time: float, activity: Activity) -> Array:
        """``g`` (..., N, K)."""
        return np.asarray(self.amplitude * np.cos(3 * time + self.phase) - 0.2 * activity.hidden)


def wave_flow(
    kind: AttentionKind,
    *,
    temperature: float = 1.0,
    name: str = "gelu",
    embeddings: Embeddings | None = None,
    seed: int = 0,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> tuple[Block, Trajectory, Array, Wave]:
    """Three random starts under a ``Wave``: block, flow, frequencies, gradient."""
    rng = np.random.default_rng(seed)
    block = Block(
        embeddings or Embeddings.orthonormal(TOKENS),
        Attention(kind=kind, temperature=temperature),
        activation(name),
    )
    x, gradient = rng.dirichlet(np.ones(TOKENS), SAMPLES), Wave(rng)
    start = {
        "weights": 0.7 * rng.normal(size=(3, UNITS, TOKENS + 1)),
        "logits": 0.7 * rng.normal(size=(3, TOKENS)),
    }
    flow = block_flow.solve(
        block,
        x,
        gradient,
        weights=start["weights"],
        logits=start["logits"],
        times=TIMES,
        weight_rate=weight_rate,
        attention_rate=attention_rate,
    )
    return block, flow, x, gradient


def relative_drift(block: Block, course: Trajectory, **rates: float) -> float:
    """Largest change of the first integral along a course, relative to its largest value."""
    value = invariants.first_integral(
        block.attention, course.logits, course.context_weights, correction=course.correction, **rates
    )
    return float(np.abs(value - value[0]).max() / max(1.0, np.abs(value).max()))


def example_descent(kind: AttentionKind, rate: float, steps: int) -> tuple[Block, sgd.Descent]:
    """Discrete steps on minibatches of two, with a kinked activation, under cross-entropy."""
    rng = np.random.default_rng(7)
    block = Block(Embeddings.orthonormal(TOKENS), Attention(kind=kind, temperature=0.8), activation("relu"))
    run = sgd.train(
        block,
        rng.dirichlet(np.ones(TOKENS), SAMPLES),
        CrossEntropyGradient((0, 1, 2, 3, 0, 1)),
        weights=0.7 * rng.normal(size=(UNITS, TOKENS + 1)),
        logits=0.7 * rng.normal(size=TOKENS),
        steps=steps,
        weight_rate=rate,
        attention_rate=rate / 3,
        sample_weights=sgd.minibatches(SAMPLES, 2, seed=0),
        record_every=steps,
    )
    return block, run

"""The gradient flow of a stack of JoMA blocks, in full and with all attention integrated out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.arguments import Array, positive
from joma.dynamics.integrator import Parts, integrate, moments
from joma.theory.activation import Activation
from joma.theory.stack import Layer, directions, reduced_logits


@dataclass(frozen=True, eq=False)
class StackTrajectory:
    """S moments of training."""

    times: Array
    layers: list[list[Layer]]
    """Moment by moment, layer by layer."""
    losses: Array
    """Cross-entropy in nats, (S,)."""


def solve(
    layers: Sequence[Layer],
    inputs: Array,
    labels: NDArray[np.int64],
    activation: Activation,
    times: ArrayLike,
    *,
    reduced: bool = False,
    through: bool = False,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    rtol: float = 1e-11,
    atol: float = 1e-13,
) -> StackTrajectory:
    """Descend the cross-entropy by DOP853; arguments as for ``joma.theory.stack.directions``.

    Args:
        layers: at the first of ``times``.
        inputs: (N, M).
        labels: (N,).
        activation: of all layers but the last.
        times: rising, at least two.
        reduced: weights and biases alone move, and the logits are Theorem 1's function of them.
        through: of the reduced network, the gradient also passes through that function: another flow.
        weight_rate: eta_w, of weights and biases.
        attention_rate: eta_z; 0 freezes attention (in full only).
        rtol: relative tolerance of each step.
        atol: absolute tolerance of each step.

    Raises:
        InputError: layers that do not fit, rates or times that make no sense.
        DivergenceError: the flow leaves the finite numbers.
    """
    where = "stack_flow.solve"
    rate = positive(where, "weight_rate", weight_rate)
    turn = positive(where, "attention_rate", attention_rate, zero=not reduced)
    t = moments(where, times, least=2)
    directions(layers, inputs, labels, activation)
    parts = Parts(
        *(shape for one in layers for shape in (one.weights.shape, one.bias.shape, one.logits.shape))
    )

    def read(state: Array) -> list[Layer]:
        flat = parts.unpack(state)
        found = [Layer(*flat[i : i + 3]) for i in range(0, len(flat), 3)]
        if not reduced:
            return found
        rates = {"weight_rate": rate, "attention_rate": turn}
        return [
            Layer(one.weights, one.bias, reduced_logits(one.weights, first, **rates))
            for one, first in zip(found, layers, strict=True)
        ]

    def velocity(_: float, state: Array) -> Array:
        now = read(state)
        _, steps = directions(now, inputs, labels, activation)
        moves: list[Array] = []
        for layer, step in zip(now, steps, strict=True):
            pull = step.weights
            if reduced and through:
                pull = pull + turn / rate * layer.weights * step.logits[:, None, :]
            moves += [rate * pull, rate * step.bias, (0.0 if reduced else turn) * step.logits]
        return parts.pack(*moves)

    start = parts.pack(*(part for one in layers for part in (one.weights, one.bias, one.logits)))
    found = integrate(where, velocity, start, t, rtol=rtol, atol=atol, advice="stop earlier")
    courses = [read(state) for state in found.states]
    losses = [directions(now, inputs, labels, activation)[0] for now in courses]
    return StackTrajectory(found.times, courses, np.array(losses))

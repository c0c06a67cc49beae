"""The joint flow of weights, token logits and position biases (``joma.theory.positions``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joma.core.arguments import Array, positive
from joma.dynamics.integrator import Parts, integrate, moments
from joma.theory.activation import Activation
from joma.theory.positions import directions


@dataclass(frozen=True, eq=False)
class PositionTrajectory:
    """S moments of the flow."""

    times: Array
    weights: Array
    """(S, K, M + 1)."""
    logits: Array
    """(S, M)."""
    positions: Array
    """(S, R)."""


def solve(
    activation: Activation,
    samples: Array,
    gradient: Callable[[float], Array],
    *,
    weights: Array,
    logits: Array,
    positions: Array,
    times: ArrayLike,
    angles: Array | None = None,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    position_rate: float = 1.0,
    rtol: float = 1e-12,
    atol: float = 1e-14,
) -> PositionTrajectory:
    """Integrate all three by DOP853; arguments as for ``joma.theory.positions.directions``.

    ``gradient`` is a function of time, (N, K); ``times`` rise, the first is the start.

    Raises:
        InputError: shapes, rates or times that make no sense.
        DivergenceError: the flow leaves the finite numbers.
    """
    where = "position_flow.solve"
    rates = [
        positive(where, name, rate, zero=True)
        for name, rate in (
            ("weight_rate", weight_rate),
            ("attention_rate", attention_rate),
            ("position_rate", position_rate),
        )
    ]
    t = moments(where, times, least=2)
    parts = Parts(np.shape(weights), np.shape(logits), np.shape(positions))

    def velocity(time: float, state: Array) -> Array:
        w, z, p = parts.unpack(state)
        step = directions(activation, samples, gradient(time), w, z, p, angles=angles)
        return parts.pack(rates[0] * step.weights, rates[1] * step.logits, rates[2] * step.positions)

    directions(activation, samples, gradient(float(t[0])), weights, logits, positions, angles=angles)
    start = parts.pack(weights, logits, positions)
    found = integrate(
        where, velocity, start, t, rtol=rtol, atol=atol, advice="stop earlier or lower the rates"
    )
    return PositionTrajectory(found.times, *parts.unpack(found.states))

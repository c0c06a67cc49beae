"""The sampled block with its true, sharp gate, in steps: between the kinks of 24,000 samples flows slide.

A sample's drift is then a step function, which vanishes nowhere; a flow comes to rest where the steps around
it point inwards, and there are several such places, up to 1e-2 of |mu| apart. Which one a flow finds is
chance. So the question is put the other way round: is the place where the block rests one where uniform
attention rests?
"""

from __future__ import annotations

import numpy as np

from joma.experiments.beyond.block_flow.cases import Array, Case
from joma.theory.drift import Drift, of_samples

STEPS = 3000
LONGER = 8.0
"""Times the time that a rounded flow needs to rest: on the last bit a sharp one creeps along its kinks."""


def descend(drift: Drift, case: Case, v: Array, time: float, *, frozen: bool) -> tuple[Array, Array]:
    """(v, z) (n,) after LONGER x ``time``: STEPS Euler steps on z = kappa v^2/2, or z = 0 (frozen attention).

    The first half have one size; the rest shrink to 1e-4 of that, so that sliding settles.
    """
    bias = np.array([case.planted.bias])
    moments = np.concatenate(
        [np.linspace(0.0, 0.8, STEPS // 2, endpoint=False), 1 - 0.2 * np.logspace(0, -4, STEPS // 2)]
    )
    for step in np.diff(LONGER * time * moments):
        gain = np.ones_like(v) if frozen else np.exp(0.5 * case.kappa * v * v)
        v = v + step * gain * drift((v * gain)[None], bias)[0][0]
    return v, np.zeros_like(v) if frozen else 0.5 * case.kappa * v * v


def rests(
    x: Array, g: Array, case: Case, v0: Array, uniform0: Array, times: tuple[float, float]
) -> dict[str, float]:
    """How far uniform attention moves from where the block rests; ``times`` for the block and for uniform.

    A weight at which no sample passes the gate is dead: nothing moves it, wherever it is. Its number is NaN.
    """
    drift = of_samples(x, g, case.planted.mixture.gate)
    v, z = descend(drift, case, v0, times[0], frozen=False)
    attended = v * np.exp(z)

    def distance_moved(begin: Array, end: Array) -> float:
        return float(np.abs(descend(drift, case, begin, times[1], frozen=True)[0] - end).max())

    dead = not drift(v[None], np.array([case.planted.bias]))[0].any()
    return {
        "sharp: uniform moves from the attended weight": distance_moved(attended, attended),
        "sharp: uniform moves from the weight": np.nan if dead else distance_moved(v, v),
        "sharp: distance of two rests": distance_moved(uniform0, attended),
    }

"""How a simulated block comes to rest: whether its attention entropy ends rising, and random blocks to try
it on.

The block is the population's (Lemma 2 in closed form): ReLU, Gaussian classes, v and z jointly, a fixed bias.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import softmax

from joma.core.arguments import Array
from joma.dynamics.block_salience_flow import integrate_joint
from joma.theory.block_boundary import slowest
from joma.theory.block_salience import entropy, lambert
from joma.theory.drift import plant
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

FROM = 0.6
"""The share of mu from which the flows start."""
FACTORS = (0.95, 1.05)
"""Of the boundary's rho_-: on this side of it and on that one."""
FOLDS = 11.0
"""By how many factors e the slowest direction has shrunk at the end."""


def draw_settings(count: int, seed: int) -> Iterator[tuple[Array, float, float]]:
    """Random mu (n,) of length 1, kappa, and the distance of the classes."""
    rng = np.random.default_rng([seed, 20_261_130])
    for _ in range(count):
        saliency, least = np.exp(rng.uniform(np.log(0.7), np.log(200.0))), rng.uniform(0.1, 0.9)
        mu = rng.uniform(least, 1.0, rng.integers(2, 21))
        mu /= np.linalg.norm(mu)
        yield mu, float((saliency / mu.max()) ** 2), float(rng.uniform(0.5, 2.0))


def final_course(mu: Array, kappa: float, distance: float, rho_minus: float) -> dict[str, float]:
    """The simulated block's entropy: its slope at the end in nats per unit of time, its rebound in nats."""
    planted = plant(Gaussian(), RELU, mu, distance=distance, rho_minus=rho_minus)
    drift, bias = planted.mixture.drift(), np.array([planted.bias])
    rate = slowest(mu, rho_minus**2, kappa=kappa).rate * planted.stiffness.transverse
    u = FROM * mu
    v0 = u * np.exp(-0.5 * lambert(kappa * u * u))
    flow = integrate_joint(
        drift,
        v0,
        np.concatenate([[0.0], FOLDS / rate * np.logspace(-3.0, 0.0, 60)]),
        kappa=kappa,
        z0=0.5 * kappa * v0 * v0,
        bias=bias,
        rtol=1e-12,
        atol=1e-14,
    )
    v, z = flow.v[-1, 0], flow.logits[-1]
    gain, p = np.exp(z), softmax(z)
    turn = kappa * v * gain * drift((v * gain)[None], bias)[0][0]
    course = entropy(flow.logits)
    return {"slope": float(-np.sum(p * (z - p @ z) * turn)), "rebound": float(course[-1] - course.min())}

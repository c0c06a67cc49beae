"""The settings of the sampled block: law, gate, dimension, saliency and spread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joma.theory.drift import PlantedMixture, plant
from joma.theory.isotropic import RELU, HomogeneousGate
from joma.theory.isotropic_laws import Gaussian, IsotropicLaw, MultivariateT, UniformBall

Array = NDArray[np.float64]
LEAKY = HomogeneousGate(0.1, 1.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted critical point and the saliency that kappa gives it."""

    name: str
    planted: PlantedMixture
    mu: Array
    """(n,), |mu| = 1."""
    kappa: float
    width: float
    """Over which the sampled gate is rounded. On a sample of 10^4 a sharp one has several rests, some
    4e-3 (n = 3) to 1e-2 (n = 30) apart, and it is chance in which of them a flow ends."""


def make(
    law: IsotropicLaw, gate: HomogeneousGate, n: int, saliency: float, spread: float, rho_minus: float = -1.0
) -> Case:
    """mu evenly spaced from ``spread`` to 1, scaled to |mu| = 1; distances in the law's unit."""
    mu = np.linspace(1.0, spread, n)
    mu /= np.linalg.norm(mu)
    unit = (n + 2.0) ** -0.5 if isinstance(law, UniformBall) else 1.0
    planted = plant(law, gate, mu, distance=1.1 * unit, rho_minus=rho_minus * unit)
    kind = "ReLU" if gate.minus == 0 else "leaky"
    name = f"{law.name.split(',')[0]}, {kind}, n = {n}, saliency {saliency:.3g}, spread {spread:.2g}"
    width = 0.01 if n <= 10 and not isinstance(law, MultivariateT) else 0.02
    return Case(name=name, planted=planted, mu=mu, kappa=float((saliency / mu.max()) ** 2), width=width)


def cases(count: int) -> list[Case]:
    """The first eight cover laws, gates, n and saliencies by hand; the rest are drawn."""
    found = [
        make(Gaussian(), RELU, 3, 2.4, 0.34),
        make(Gaussian(), LEAKY, 10, 6.0, 0.5),
        make(Gaussian(), RELU, 30, 3.0, 0.3),
        make(UniformBall(3), RELU, 3, 4.0, 0.3),
        make(UniformBall(10), LEAKY, 10, 3.0, 0.6),
        make(UniformBall(30), LEAKY, 30, 2.0, 0.4),
        make(MultivariateT(5.0), RELU, 3, 4.0, 0.5),
        make(MultivariateT(3.0), LEAKY, 4, 2.0, 0.7),
    ]
    rng = np.random.default_rng(0)
    while len(found) < count:
        n = int(rng.integers(3, 31))
        law = [Gaussian(), UniformBall(n), MultivariateT(rng.uniform(3.0, 8.0))][rng.integers(3)]
        gate = [RELU, LEAKY][rng.integers(2)]
        found.append(make(law, gate, n, float(rng.uniform(1.5, 6.0)), float(rng.uniform(0.2, 0.9))))
    return found[:count]

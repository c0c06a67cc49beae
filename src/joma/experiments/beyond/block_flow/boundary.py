"""Which data bounce: the boundary's closed form beside simulated blocks; and what the start costs.

The simulated block is the population's (Lemma 2 in closed form, ReLU, Gaussian classes), v and z jointly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.special import softmax

from joma.core.progress import Progress
from joma.dynamics.block_salience_flow import integrate_joint
from joma.experiments.beyond.block_flow.cases import Array, Case, make
from joma.theory.block_boundary import critical_ratio, slowest
from joma.theory.block_salience import convergence_rate, entropy, lambert
from joma.theory.drift import Drift, plant, towards
from joma.theory.escape_time import escape_time
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

FROM = 0.6
"""The share of mu from which the flows of the boundary start."""
FACTORS = (0.95, 1.05)
"""Of the boundary's rho_-: on this side of it and on that one."""
FOLDS = 11.0
"""By how many factors e the slowest direction has shrunk at the end."""
SHARES = (0.8, 0.6, 0.3, 0.18)
"""Of mu: where the flows start whose cost of the linear drift is measured."""


def drawn(count: int, seed: int) -> Iterator[tuple[Array, float, float]]:
    """Random mu (n,) of length 1, kappa, and the distance of the classes."""
    rng = np.random.default_rng([seed, 20_261_130])
    for _ in range(count):
        saliency, least = np.exp(rng.uniform(np.log(0.7), np.log(200.0))), rng.uniform(0.1, 0.9)
        mu = rng.uniform(least, 1.0, rng.integers(2, 21))
        mu /= np.linalg.norm(mu)
        yield mu, float((saliency / mu.max()) ** 2), float(rng.uniform(0.5, 2.0))


def final_course(mu: Array, kappa: float, distance: float, rho_minus: float) -> dict[str, float]:
    """How the simulated block's entropy moves at the end, in nats per unit of time, and its rebound in nats."""
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


def boundary(progress: Progress, count: int, seed: int) -> pd.DataFrame:
    """Table ``boundary``: slope and rebound of random blocks on both sides of the closed form's rho_-."""
    rows = []
    for index, (mu, kappa, distance) in enumerate(progress.track(list(drawn(count, seed)), "boundary")):
        rho = -float(np.sqrt(critical_ratio(mu, kappa=kappa)))
        for factor in FACTORS:
            rows += [
                {"draw": index, "rho_minus": rho, "factor": factor, "metric": metric, "value": value}
                for metric, value in final_course(mu, kappa, distance, factor * rho).items()
            ]
    return pd.DataFrame(rows)


def starts(components: int) -> pd.DataFrame:
    """Table ``starts``: rebound of the population's block and of the full C(mu), by rho_- and start."""
    rows = []
    for rho, shares in ((-1.0, SHARES), (-0.5, (*SHARES, 0.1))):
        case = make(Gaussian(), RELU, components, 12.0, 0.34, rho)
        c = case.planted.stiffness
        for share in shares:
            for name, drift in (("population", None), ("full C", towards(case.mu, c.matrix(case.mu)))):
                rebound = _rebound(case, share, rho, drift)
                rows.append(
                    {"run": name, "rho_minus": rho, "start": share, "metric": "rebound", "value": rebound}
                )
    return pd.DataFrame(rows)


def _rebound(case: Case, share: float, rho: float, drift: Drift | None) -> float:
    """Nats, from the share of mu to rest."""
    c = case.planted.stiffness
    least = slowest(case.mu, c.along / c.transverse, kappa=case.kappa).rate
    wait = escape_time(min(share, 0.5), distance=1.1, rho_minus=rho) if drift is None else 0.0
    early = 1e-3 / convergence_rate(case.mu, kappa=case.kappa).max()
    moments = np.concatenate([[0.0], np.geomspace(early, wait + 12.0 / least, 800)])
    u = share * case.mu
    v0 = u * np.exp(-0.5 * lambert(case.kappa * u * u))
    flow = integrate_joint(
        drift or case.planted.mixture.drift(),
        v0,
        moments / c.transverse,
        kappa=case.kappa,
        z0=0.5 * case.kappa * v0 * v0,
        bias=case.planted.bias,
        rtol=1e-10,
        atol=1e-12,
    )
    course = entropy(flow.logits)
    return float(course[-1] - course.min())

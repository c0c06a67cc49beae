"""Which data bounce: the boundary's closed form beside simulated blocks; and what the start costs.

The simulated block is the population's (``joma.dynamics.block_end``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.dynamics.block_end import FACTORS, draw_settings, final_course
from joma.dynamics.block_salience_flow import integrate_joint
from joma.experiments.beyond.block_flow.cases import Case, make
from joma.theory.block_boundary import critical_ratio, slowest
from joma.theory.block_salience import convergence_rate, entropy, lambert
from joma.theory.drift import Drift, towards
from joma.theory.escape_time import escape_time
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

PATIENCE = 1000.0
"""Transverse time constants that a flow is given to leave its start."""


def boundary(progress: Progress, count: int, seed: int) -> pd.DataFrame:
    """Table ``boundary``: slope and rebound of random blocks on both sides of the closed form's rho_-."""
    rows = []
    for index, (mu, kappa, distance) in enumerate(
        progress.track(list(draw_settings(count, seed)), "boundary")
    ):
        rho = -float(np.sqrt(critical_ratio(mu, kappa=kappa)))
        for factor in FACTORS:
            rows += [
                {"draw": index, "rho_minus": rho, "factor": factor, "metric": metric, "value": value}
                for metric, value in final_course(mu, kappa, distance, factor * rho).items()
            ]
    return pd.DataFrame(rows)


def starts(components: int, shares: Sequence[float]) -> pd.DataFrame:
    """Table ``starts``: rebound of the population's block and of the full C(mu), by rho_- and share of mu.

    Shares from which the gate opens only after ``PATIENCE`` are left out.
    """
    rows = []
    for rho in (-1.0, -0.5):
        case = make(Gaussian(), RELU, components, 12.0, 0.34, rho)
        c = case.planted.stiffness
        for share in shares:
            if escape_time(min(share, 0.5), distance=1.1, rho_minus=rho) > PATIENCE:
                continue
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
    end = wait + 12.0 / least
    early = 1e-3 / convergence_rate(case.mu, kappa=case.kappa).max()
    moments = np.union1d(np.geomspace(early, end, 800), np.linspace(0.0, end, 800))
    u = share * case.mu
    v0 = u * np.exp(-0.5 * lambert(case.kappa * u * u))
    lowest = np.inf
    for _ in range(3):  # what follows the escape is short beside it: zoom in on the least entropy
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
        best = int(course.argmin())
        lowest = min(lowest, float(course[best]))
        near = np.linspace(moments[max(best - 1, 0)], moments[min(best + 1, moments.size - 1)], 200)
        moments = np.union1d(near, [0.0, end])
    return float(course[-1]) - lowest

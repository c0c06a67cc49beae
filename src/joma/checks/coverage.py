"""How many nodes leave the shut gate, over K and the initial scale: the law against simulated nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.claim import Claim, above, statements, within_error
from joma.dynamics.block_salience_flow import integrate_joint
from joma.theory.coverage import arrival_probability, coverage, neurons_needed
from joma.theory.drift import plant
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

DISTANCE, RHO, PATIENCE, DIMENSIONS = 1.1, -0.5, 60.0, 4
SCALES = (0.04, 0.07, 0.12)
NODES, K = 240, 6
STATEMENTS = statements(
    {
        "coverage.nodes": "JoMA Thm 4, Eq. 6 ('zero initialisation'), poster (why over-parametrisation) | "
        "The share of nodes that reach half of mu from random weights is E_c P[chi_n > l*(c)/scale], and a "
        "latent with K nodes is found with the probability 1 - (1 - q)^K.",
        "coverage.price": "JoMA poster, future work | Small initial weights ask for many nodes: halving the "
        "scale multiplies ln 2/q, and the more the smaller it is.",
    },
    exact=True,
)


def arrivals(scale: float, seed: int) -> np.ndarray:
    """Which of ``NODES`` nodes, uniform attention, have half of mu within the patience: (NODES,) of bool."""
    mu = np.full(DIMENSIONS, DIMENSIONS**-0.5)
    planted = plant(Gaussian(), RELU, mu, distance=DISTANCE, rho_minus=RHO)
    v0 = scale * np.random.default_rng([seed, 29]).standard_normal((NODES, DIMENSIONS))
    moments = np.linspace(0.0, PATIENCE / planted.stiffness.transverse, 61)
    flow = integrate_joint(planted.mixture.drift(), v0, moments, attention="frozen", bias=planted.bias)
    return np.asarray((flow.attended @ mu >= 0.5).any(axis=0))


def coverage_group() -> list[Claim]:
    """The law of coverage, and what a small scale costs."""
    law = arrival_probability(
        SCALES, dimensions=DIMENSIONS, distance=DISTANCE, rho_minus=RHO, patience=PATIENCE
    )
    there = [arrivals(scale, 0) for scale in SCALES]
    found = np.array([nodes.mean() for nodes in there])
    sigma = np.sqrt(law * (1 - law) / NODES)
    groups = np.array([nodes.reshape(-1, K).any(axis=1).mean() for nodes in there])
    together = coverage(law, K)
    spread = np.sqrt(together * (1 - together) / (NODES // K))
    needed = neurons_needed(
        arrival_probability(
            [0.02, 0.04, 0.08], dimensions=DIMENSIONS, distance=DISTANCE, rho_minus=RHO, patience=PATIENCE
        )
    )
    return [
        STATEMENTS["coverage.nodes"].judge(
            within_error(
                4.0, np.abs(found - law) / sigma, of="error of the share of nodes, in binomial deviations,"
            )
            & within_error(4.0, np.abs(groups - together) / spread, of=f"that of groups of {K}"),
            null=float((np.abs(1.0 - found) / sigma).min()),
            null_description="C (mu - v), under which every node arrives, least over the scales",
            evidence="; ".join(
                f"scale {s:g}: {f:.3f} (law {q:.3f}), groups {g:.3f} ({c:.3f})"
                for s, f, q, g, c in zip(SCALES, found, law, groups, together, strict=True)
            ),
        ),
        STATEMENTS["coverage.price"].judge(
            above(
                needed[1] / needed[2],
                needed[0] / needed[1],
                of="factor from 0.04 to 0.02",
                than="that from 0.08",
            )
            & above(1.0, needed[1] / needed[2], of="factor from 0.08 to 0.04"),
            evidence="nodes for one latent at even odds: "
            + ", ".join(f"scale {s:g}: {k:.3g}" for s, k in zip((0.02, 0.04, 0.08), needed, strict=True)),
        ),
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {"coverage": coverage_group}

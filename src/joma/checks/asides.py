"""What the paper says in passing about its critical points: other activations, and Theorem 3's remainder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from joma.core.arguments import Array
from joma.core.claim import Claim, below, between, statements
from joma.theory.drift import Mixture, plant
from joma.theory.isotropic import RELU, HomogeneousGate
from joma.theory.isotropic_laws import Gaussian, IsotropicLaw, MultivariateT, UniformBall

RHO = np.linspace(-200.0, 8.0, 20_801)
TAILS = (1.2, 1.5, 2.0, 3.0)
"""nu of the t laws, which all have critical points with ReLU."""
LEAK = 0.3
"""A slope below zero as leaky activations have."""

STATEMENTS = statements(
    {
        "lemma4_gates.leaky": "JoMA Lemma 4, 'Similar results also hold for other homogeneous activations' "
        "| Where (v, xi) has critical points with ReLU, it has them with leaky activations.",
        "theorem3_remainder.order": "JoMA Thm 3, Eq. 5, |lambda(mu, gamma)| << 1 | Within gamma |mu| of mu "
        "the drift is C (mu - v) (1 + lambda) with lambda of the order of gamma: small where gamma is.",
    },
    exact=True,
)


def _excess(law: IsotropicLaw, gate: HomogeneousGate, rho: Array) -> Array:
    """H = F/theta_1 with the gate's own moments: equal at both rho of a critical point of (v, xi)."""
    jump = gate.plus - gate.minus
    share = gate.minus + jump * np.asarray(law.theta_1(rho))
    return np.asarray((gate.minus * rho + jump * np.asarray(law.F(rho))) / share)


def _falls(law: IsotropicLaw, leak: float) -> bool:
    """Whether H falls somewhere, without which there is no critical point."""
    return bool(np.diff(_excess(law, HomogeneousGate(leak, 1.0), RHO)).min() < 0)


def _largest_leak(law: IsotropicLaw) -> float:
    """The slope below zero from which on H only rises, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(14):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _falls(law, middle) else (low, middle)
    return low


def _residual(law: IsotropicLaw, leak: float) -> float:
    """|v'| and |xi'| at a critical point with that gate: a pair of rho of one H."""
    gate = HomogeneousGate(leak, 1.0)
    h = _excess(law, gate, RHO)
    falls = np.flatnonzero(np.diff(h) < 0)
    top, bottom = falls[0], falls[-1] + 1
    level = float(0.5 * (h[top] + h[bottom]))

    def gap(rho: float) -> float:
        return float(_excess(law, gate, np.array([rho]))[0]) - level

    low, high = (float(brentq(gap, *ends)) for ends in ((RHO[top], RHO[bottom]), (RHO[bottom], RHO[-1])))
    below, above = (leak + (1.0 - leak) * float(law.theta_1(rho)) for rho in (low, high))
    centres = np.array([[0.0, 0.0], [high - low, 0.0]])
    drift = Mixture(law, gate, centres, np.array([-above / below, 1.0])).drift(trained_bias=True)
    pull, push = drift(np.array([[1.7, 0.0]]), np.array([1.7 * low]))
    return max(float(np.abs(pull).max()), float(np.abs(push).max()))


def lemma4_gates() -> list[Claim]:
    """Leaky activations: critical points only below a slope that the tails decide."""
    laws = [MultivariateT(nu) for nu in TAILS]
    limits = [_largest_leak(law) for law in laws]
    without = {leak: float(np.mean([not _falls(law, leak) for law in laws])) for leak in (0.0, LEAK)}
    inside = RHO[RHO > -6.0]
    concave = min(
        float(np.diff(_excess(law, HomogeneousGate(leak, 1.0), inside)).min())
        for law in (Gaussian(), UniformBall(3))
        for leak in (0.01, LEAK)
    )
    return [
        STATEMENTS["lemma4_gates.leaky"].correct(
            "Only below a slope that the tails decide, "
            + ", ".join(f"t_{nu:g}: {limit:.3f}" for nu, limit in zip(TAILS, limits, strict=True))
            + "; with a larger one H = F/theta_1 rises everywhere and there are none.",
            printed_error=without[LEAK],
            error=max(_residual(law, 0.8 * limit) for law, limit in zip(laws, limits, strict=True)),
            tolerance=1e-10,
            null=without[0.0],
            null_description="share of these laws without critical points with ReLU",
            evidence=f"printed: share of these laws without, slope {LEAK:g}; corrected: |v'|, |xi'| at a "
            f"pair of rho of equal H, slopes 0.8 of the limits; Gaussian and ball: H rises by {concave:.1e} "
            "a grid step or more",
        )
    ]


def theorem3_remainder() -> list[Claim]:
    """lambda(mu, gamma): how far the drift is from C (mu - v) at a distance of gamma |mu|."""
    mu = np.array([2.373, 1.56, 0.809])
    gammas = (0.01, 0.03, 0.1, 0.3, 1.0)
    directions = np.random.default_rng(0).standard_normal((40, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    full: list[Array] = []
    alike: list[Array] = []
    for law, rho in ((Gaussian(), -0.5), (UniformBall(3), -0.5), (MultivariateT(5.0), -1.0)):
        unit = 5.0**-0.5 if isinstance(law, UniformBall) else 1.0
        planted = plant(law, RELU, mu, distance=1.1 * unit, rho_minus=rho * unit)
        drift, c = planted.mixture.drift(), planted.stiffness.matrix(mu)
        for model, found in ((c, full), (planted.stiffness.transverse * np.eye(3), alike)):
            rows = []
            for gamma in gammas:
                steps = gamma * np.linalg.norm(mu) * directions
                pulls = np.stack([drift((mu + s)[None], np.array([planted.bias]))[0][0] for s in steps])
                linear = -steps @ model.T
                off = np.linalg.norm(pulls - linear, axis=1) / np.linalg.norm(linear, axis=1)
                rows.append(off.max())
            found.append(np.array(rows))
    worst, other = np.max(full, axis=0), np.min(alike, axis=0)
    order = float(np.log(worst[1] / worst[0]) / np.log(gammas[1] / gammas[0]))
    return [
        STATEMENTS["theorem3_remainder.order"].judge(
            below(0.1, worst[0], of="largest |lambda| at gamma = 0.01")
            & between(0.9, 1.1, order, of="order of lambda in gamma"),
            null=other[0],
            null_description="the same with C without its mu mu' part, least of the laws",
            evidence="largest |lambda| in 40 directions, Gaussian, uniform ball, t_5: "
            + ", ".join(f"gamma {g:g}: {w:.3g}" for g, w in zip(gammas, worst, strict=True))
            + f"; order {order:.2f}",
        )
    ]


CHECKS: dict[str, Callable[[], list[Claim]]] = {
    "lemma4_gates": lemma4_gates,
    "theorem3_remainder": theorem3_remainder,
}

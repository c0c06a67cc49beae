"""Which data bounce (the boundary in rho_-), and how long the shut gate at v = 0 holds: as claims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from joma.core.claim import Claim, above, below, equal, statements, within_error
from joma.dynamics.block_end import FACTORS, draw_settings, final_course
from joma.dynamics.block_salience_flow import integrate_joint
from joma.theory.block_boundary import critical_ratio, final_slope
from joma.theory.drift import plant
from joma.theory.escape_time import escape_time
from joma.theory.isotropic import RELU
from joma.theory.isotropic_laws import Gaussian

BLOCKS = 4
MU = np.array([0.8, 0.5, 0.33])
DISTANCE = 1.1

STATEMENTS = statements(
    {
        "block_boundary.ratio": "JoMA Thm 3, of Gaussian data | C(mu) = beta_1 (I + (rho_-^2 - 1) m m'): "
        "its eigenvalue along mu is rho_-^2 times the transverse one, whatever the classes' distance.",
        "block_boundary.boundary": "JoMA Sec. 4, 'the attention dips and bounces back', with Theorem 3's "
        "own C | The entropy of a block of Gaussian data ends rising if and only if rho_-^2 exceeds chi_c, "
        "the root of sum_l p_l (z_l - <z>) W_l e^{W_l}/(d_l - lambda) in closed form.",
        "block_boundary.one": "JoMA Sec. 4, 'treat C as I' | There is one boundary, and 0 < chi_c < 1: with "
        "C = I (rho_- = -1) every block bounces, and so do all with |rho_-| > 1.",
        "escape.zero": "JoMA Thm 4, Eq. 6 ('zero initialisation') | From v = 0 the weights move at once, at "
        "the speed C mu.",
        "escape.time": "JoMA Thm 4, Eq. 6 ('zero initialisation') | From a share s of mu half of it is "
        "reached after a time given by a quadrature, of order exp((|rho_-|/s - X)^2/2).",
    },
    exact=True,
)


def block_boundary() -> list[Claim]:
    """Which blocks of Gaussian data bounce."""
    return [_ratio(), _boundary(), _one_boundary()]


def escape() -> list[Claim]:
    """Zero initialisation."""
    return [_zero(), _time()]


def _ratio() -> Claim:
    errors, others = [], []
    for rho in (-1.7, -1.0, -0.6, -0.3):
        for distance in (0.5, 1.1, 2.0):
            c = plant(Gaussian(), RELU, MU, distance=distance, rho_minus=rho).stiffness
            errors.append(abs(c.along / c.transverse / rho**2 - 1))
            others.append(abs(c.along / c.transverse - 1))
    return STATEMENTS["block_boundary.ratio"].judge(
        within_error(1e-9, max(errors)),
        null=max(others),
        null_description="error of C = beta_1 I, the paper's simplification",
        evidence="relative; rho_- from -1.7 to -0.3, distance 0.5 to 2",
    )


def _boundary() -> Claim:
    slopes, bounds = [], []
    for mu, kappa, distance in draw_settings(BLOCKS, 3):
        rho = -float(np.sqrt(critical_ratio(mu, kappa=kappa)))
        bounds.append(rho)
        slopes.append([final_course(mu, kappa, distance, factor * rho)["slope"] for factor in FACTORS])
    falling, rising = np.array(slopes).T
    right = float(np.mean((falling < 0) & (rising > 0)))
    return STATEMENTS["block_boundary.boundary"].judge(
        equal(
            1.0,
            right,
            of=f"share of simulated blocks that end falling at {FACTORS[0]:g} of the boundary's rho_- and "
            f"rising at {FACTORS[1]:g}",
        ),
        null=float(np.mean(falling > 0)),
        null_description="share that end rising below it, where 'every block bounces' has all",
        evidence=f"{BLOCKS} random blocks, the population's (v, z) from 0.6 mu; boundaries "
        f"at rho_- from {min(bounds):.3f} to {max(bounds):.3f}",
    )


def _one_boundary() -> Claim:
    rng = np.random.default_rng(5)
    wrong, bounds = 0, []
    for _ in range(40):
        mu = np.exp(rng.uniform(np.log(0.7), np.log(300.0))) * rng.uniform(0.1, 1.0, rng.integers(2, 15))
        bounds.append(critical_ratio(mu))
        factors = np.geomspace(1e-2, 1e4, 24)
        signs = [final_slope(mu, bounds[-1] * factor) > 0 for factor in factors]
        wrong += signs != list(factors > 1)
    return STATEMENTS["block_boundary.one"].judge(
        below(1.0, max(bounds), of="largest boundary chi_c")
        & above(0.0, min(bounds), of="least boundary chi_c")
        & equal(0, wrong, of="mu of 40 with another than one change of sign along rho_-^2"),
        evidence=f"chi_c from {min(bounds):.4f} to {max(bounds):.4f}; rho_-^2 from chi_c/100 to 10^4 chi_c",
    )


def _zero() -> Claim:
    """Eq. 6 leaves v = 0 at the speed mu; the drift that it linearises does not leave it at all."""
    planted = plant(Gaussian(), RELU, MU, distance=DISTANCE, rho_minus=-1.0)
    drift, bias = planted.mixture.drift(), np.array([planted.bias])
    at_zero, at_once = (
        float(np.linalg.norm(drift(np.atleast_2d(v), bias)[0])) for v in (np.zeros(3), 1e-3 * MU)
    )
    printed = float(np.linalg.norm(planted.stiffness.matrix(MU) @ MU))
    return STATEMENTS["escape.zero"].correct(
        "With Theorem 3's xi < 0 the gate is shut at v = 0, which is an equilibrium: they never move.",
        printed_error=abs(at_zero - printed) / printed,
        error=at_zero / printed,
        tolerance=1e-12,
        evidence="speed at v = 0 over |C mu|, Gaussian classes, ReLU, rho_- = -1; at a thousandth of mu "
        f"{at_once / printed:.2g}",
        null=float(np.linalg.norm(drift(0.6 * MU[None], bias)[0])) / printed,
        null_description="speed at 0.6 mu",
    )


def _time() -> Claim:
    errors, wait = [], []
    for rho, share in ((-1.0, 0.25), (-0.5, 0.15)):
        planted = plant(Gaussian(), RELU, MU, distance=DISTANCE, rho_minus=rho)
        wanted = escape_time(share, distance=DISTANCE, rho_minus=rho)
        moments = wanted / planted.stiffness.transverse * np.linspace(0.9, 1.1, 41)
        v0, kappa = share * MU, 0.1
        flow = integrate_joint(
            planted.mixture.drift(), v0, moments, bias=planted.bias, kappa=kappa, z0=0.5 * kappa * v0 * v0
        )
        reached = np.linalg.norm(flow.attended[:, 0], axis=1) / np.linalg.norm(MU)
        measured = float(np.interp(0.5, reached, moments)) * planted.stiffness.transverse
        errors.append(abs(measured / wanted - 1))
        wait.append(wanted)
    return STATEMENTS["escape.time"].judge(
        within_error(0.05, max(errors)),
        evidence="relative, against the flow of v and z from s = 0.25 (rho_- = -1) and 0.15 (-0.5): "
        f"{wait[0]:.2f} and {wait[1]:.2f} time constants",
        null=abs(float(np.log(2 * (1 - 0.25))) / wait[0] - 1),
        null_description="error of C (mu - v)'s time",
    )


CHECKS: dict[str, Callable[[], list[Claim]]] = {"block_boundary": block_boundary, "escape": escape}

"""Lemmas 1, 2, 3 and 5 of JoMA: gated expectations under isotropic laws, and the flow they make.

**Lemma 1 is wrong as printed.** In Eq. 31-41 the density of y' = |v| s is written p_n(y') where
p_n(y'/|v|) belongs, so that the printed theta_1/|v| and theta_2/|v|^3 hold at |v| = 1 alone (psi = 1
would give E[psi] = 1/|v|). With l = |R R'v| and r = v.xbar + xi, what is true is

    Theta_1(r, l) = int psi(l s + r) p_n(s) ds,    Theta_2(r, l) = int s psi(l s + r) p_n(s) ds,
    E[psi] = Theta_1,    E[x psi] = Theta_1 xbar + Theta_2 RR'v/l.

A gate homogeneous of degree 0 (ReLU, leaky ReLU) sees only rho = r/l, which is the signed distance that
the paper calls r; a smooth gate sees both, so that "only depends on psi and the distribution but not v"
is false of it. The functions named ``*_printed`` are the paper's, kept for comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad

from joma.core.arguments import finite, number, positive
from joma.core.errors import InputError
from joma.theory.isotropic_laws import IsotropicLaw, require_law

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HomogeneousGate:
    """phi' of an activation homogeneous of degree one: ``minus`` below 0, ``plus`` above."""

    minus: float = 0.0
    plus: float = 1.0

    def __post_init__(self) -> None:
        for name in ("minus", "plus"):
            number("HomogeneousGate", name, getattr(self, name))

    def __call__(self, x: ArrayLike) -> Array:
        """psi(x)."""
        return np.asarray(np.where(finite("HomogeneousGate", "x", x) > 0, self.plus, self.minus))


@dataclass(frozen=True)
class SmoothGate:
    """Any other gate psi = phi', as a function of a number or an array."""

    psi: Callable[[ArrayLike], ArrayLike]

    def __post_init__(self) -> None:
        if not callable(self.psi):
            raise InputError(f"SmoothGate: psi = {self.psi!r} is not a function; give the derivative phi'.")

    def __call__(self, x: ArrayLike) -> Array:
        """psi(x)."""
        return np.asarray(self.psi(x))


Gate = HomogeneousGate | SmoothGate
RELU = HomogeneousGate()


def gate_moments(law: IsotropicLaw, gate: Gate, r: float, norm: float) -> tuple[float, float]:
    """(Theta_1, Theta_2) at r = v.xbar + xi and norm = |RR'v| > 0: Lemma 1, corrected."""
    where = "gate_moments"
    require_law(where, law)
    r, norm = number(where, "r", r), number(where, "norm", norm)
    if not norm > 0:
        raise InputError(f"{where}: norm = {norm!r}; v must have a direction within the law's space.")
    if not isinstance(gate, HomogeneousGate | SmoothGate):
        raise InputError(f"{where}: gate = {gate!r}; give a HomogeneousGate or a SmoothGate.")
    if isinstance(gate, HomogeneousGate):
        rho, jump = r / norm, gate.plus - gate.minus
        return gate.minus + jump * float(law.theta_1(rho)), jump * float(law.theta_2(rho))

    def gated_value(s: float) -> float:
        value = float(gate(norm * s + r))
        if not np.isfinite(value):
            raise InputError(
                f"{where}: psi({norm * s + r:g}) = {value}; give a gate that is finite everywhere."
            )
        return value

    kink = -r / norm
    return _integral(law, gated_value, kink), _integral(law, lambda s: s * gated_value(s), kink)


def gate_moments_printed(law: IsotropicLaw, gate: Gate, r: float, norm: float) -> tuple[float, float]:
    """(theta_1, theta_2)/(|v|, |v|^2) as Eq. 23 and 40-41 have them: right only at |v| = 1."""
    if not 1e-150 < positive("gate_moments_printed", "norm", norm) < 1e150:
        raise InputError(
            f"gate_moments_printed: the square of norm = {norm:g} is beyond float64; rescale it."
        )
    theta_1, theta_2 = gate_moments(law, gate, r, 1.0)
    return theta_1 / norm, theta_2 / norm**2


def gated_expectation(
    law: IsotropicLaw,
    gate: Gate,
    v: ArrayLike,
    centre: ArrayLike,
    bias: float,
    *,
    basis: ArrayLike | None = None,
    printed: bool = False,
) -> tuple[float, Array]:
    """Lemma 1: (E[psi(v.x + bias)], E[x psi(v.x + bias)]) for x isotropic about ``centre``.

    Args:
        law: of the projections of x - centre.
        gate: psi.
        v: (d,).
        centre: xbar, (d,).
        bias: xi.
        basis: R, (d, n), orthonormal columns that span the law's space; all of it unless given.
        printed: Eq. 23 as printed instead.
    """
    where = "gated_expectation"
    weights, mean, bias = finite(where, "v", v), finite(where, "centre", centre), number(where, "bias", bias)
    if weights.ndim != 1 or mean.shape != weights.shape:
        raise InputError(
            f"gated_expectation: v {weights.shape} and centre {mean.shape} must be vectors alike."
        )
    inside = weights
    if basis is not None:
        r = finite(where, "basis", basis)
        if (
            r.ndim != 2
            or r.shape[0] != weights.size
            or not np.allclose(r.T @ r, np.eye(r.shape[1]), atol=1e-9)
        ):
            raise InputError(
                f"gated_expectation: basis {r.shape} must have orthonormal columns of length {weights.size}."
            )
        inside = r @ (r.T @ weights)
    norm = float(np.linalg.norm(inside))
    if norm == 0.0:
        raise InputError(
            "gated_expectation: RR'v = 0, which has no direction; v must reach into the law's space."
        )
    moments = gate_moments_printed if printed else gate_moments
    theta_1, theta_2 = moments(law, gate, float(weights @ mean) + bias, norm)
    return theta_1, theta_1 * mean + theta_2 * inside / norm


def mixture_flow(
    law: IsotropicLaw,
    gate: Gate,
    v: ArrayLike,
    bias: float,
    centres: ArrayLike,
    amplitudes: ArrayLike,
    *,
    printed: bool = False,
) -> tuple[Array, float]:
    """Lemma 2 (Eq. 42-43): (v', xi') for a mixture of C laws about ``centres``.

    v' = sum_j a_j [Theta_1 xbar_j + Theta_2 v/|v|], xi' = sum_j a_j Theta_1, uniform attention.

    Args:
        law: common to all parts.
        gate: phi'.
        v: (d,), not zero.
        bias: xi.
        centres: xbar_j, (C, d).
        amplitudes: a_j = E[g_h | j] P[j], signed, (C,).
        printed: with Lemma 1 as printed.
    """
    means, a = finite("mixture_flow", "centres", centres), finite("mixture_flow", "amplitudes", amplitudes)
    if means.ndim != 2 or a.shape != means.shape[:1] or a.size == 0:
        raise InputError(
            f"mixture_flow: centres {means.shape} and amplitudes {a.shape} must be (C, d) and (C,), C > 0."
        )
    parts = [gated_expectation(law, gate, v, mean, bias, printed=printed) for mean in means]
    drift = np.sum([weight * vector for weight, (_, vector) in zip(a, parts, strict=True)], axis=0)
    return np.asarray(drift), float(sum(weight * theta for weight, (theta, _) in zip(a, parts, strict=True)))


def potential(law: IsotropicLaw, gate: HomogeneousGate, rho: ArrayLike) -> Array:
    """Lemma 3: F(rho) = E[phi(s + rho)], with F' = theta_1 and theta_2 = F - rho theta_1.

    E[phi(v.x + xi)] = l F(rho). Monotone where both slopes are >= 0 (printed without the condition).
    """
    _check("potential", law, gate)
    at = finite("potential", "rho", rho)
    return np.asarray((gate.plus - gate.minus) * law.F(at) + gate.minus * at)


def theta_derivatives(law: IsotropicLaw, gate: HomogeneousGate, rho: ArrayLike) -> tuple[Array, Array]:
    """Lemma 5, corrected: (theta_1', theta_2') = (c_+ - c_-) (p_n, -rho p_n).

    phi' (printed: phi) is c_- 1[x < 0] + c_+ 1[x > 0].
    """
    _check("theta_derivatives", law, gate)
    at = finite("theta_derivatives", "rho", rho)
    p = (gate.plus - gate.minus) * law.density(at)
    return p, np.asarray(-at * p)


def theta_derivatives_printed(
    law: IsotropicLaw, gate: HomogeneousGate, rho: ArrayLike
) -> tuple[Array, Array]:
    """Lemma 5 as printed, with c_- + c_+: a linear phi would give theta_1' = 2 p_n instead of 0."""
    _check("theta_derivatives_printed", law, gate)
    at = finite("theta_derivatives_printed", "rho", rho)
    p = (gate.plus + gate.minus) * law.density(at)
    return p, np.asarray(-at * p)


def _integral(law: IsotropicLaw, value: Callable[[float], float], kink: float) -> float:
    """E[value(s)], with the breakpoints that a gate and an even density have."""
    end = law.support
    edges = sorted({-end, *(p for p in (-8.0, 0.0, kink, 8.0) if abs(p) < end), end})
    return float(
        sum(
            quad(lambda s: value(s) * float(law.density(s)), a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0]
            for a, b in itertools.pairwise(edges)
        )
    )


def _check(where: str, law: IsotropicLaw, gate: Gate) -> None:
    require_law(where, law)
    if not isinstance(gate, HomogeneousGate):
        raise InputError(f"{where}: gate = {gate!r}; the lemma is about a HomogeneousGate, give one.")

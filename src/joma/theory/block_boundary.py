"""Which data make the block's attention bounce: the boundary between an entropy that ends rising and falling.

Near its rest the block's attended weight u = v e^z (``joma.theory.block_salience``) obeys, with Theorem
3's C,

    delta = u - mu,    delta' = -D C delta,    D = diag(d_l),    d_l = (1 + W_l) e^{W_l},
    W_l = W(kappa mu_l^2) = 2 z_l.

C has two eigenvalues, one along mu and one transverse to it: C = beta_1 (I + (chi - 1) m m'), m = mu/|mu|,
chi their ratio. At a critical point of Gaussian data about xbar_+ and about the origin, with a homogeneous
gate,

    a_- p(rho_-) = a_+ [X theta_1(rho_+) + p(rho_+)],    **chi = rho_-^2**,

whatever X, since Theorem 3's eigenvalue along mu is (rho_-^2/|mu|)(a_- p(rho_-) - a_+ p(rho_+)) and the
transverse one a_+ X theta_1(rho_+)/|mu|. Only at rho_- = -1 is C a multiple of the identity.

**The slowest direction.** D C e = lambda e gives, in units of beta_1,

    e_l ~ d_l m_l/(d_l - lambda),    lambda sum_l m_l^2/(d_l - lambda) = chi/(1 - chi),

so that the least lambda rises from 0 at chi = 0 to min d at chi = 1. A course that comes from a share of mu
approaches its rest as u = mu - a e e^{-lambda t} with a > 0 if e is turned so that sum_l e_l m_l/d_l > 0 (the
left eigenvector is e_l/d_l). The entropy of softmax(z) then changes by -cov_p(z, dz), dz_l = W_l/((1 + W_l)
mu_l) du_l:

    it ends rising  iff  S(lambda) = sum_l p_l (z_l - <z>) W_l e^{W_l}/(d_l - lambda) < 0    (chi < 1).

**One boundary.** Along l the factors z_l - <z> change their sign once, say at d*. Every term of (d* - lambda)
S(lambda) falls as lambda rises, so S has one root below min d: S(0) > 0, and S -> -inf at min d. Its lambda
gives chi_c = R/(1 + R) with R = lambda sum_l m_l^2/(d_l - lambda): **0 < chi_c < 1**. For chi >= 1 the
entropy ends rising always: then e_1 > 0 for the least component alone, and with b_l = d_l m_l^2/(d_l -
lambda), which is negative for it alone and sums to at most 0, S = sum_l g_l b_l > 0, since the least
component has the least g_l = (z_l - <z>) e^{-W_l/2}/(1 + W_l), up to a factor. So with C = I every block
bounces, as ``joma.theory.bounce_law`` has it, and with the paper's own C those with chi > chi_c.

Below the boundary the slowest direction is nearly mu itself: all components come to rest together, the
salient ones rise most at the end, and attention only sharpens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from joma.core.arguments import positive
from joma.core.errors import InputError
from joma.theory.block_salience import lambert, scaled_points

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Slowest:
    """The direction in which the block comes to rest last."""

    rate: float
    """lambda/beta_1: the least eigenvalue of D C in units of C's transverse eigenvalue."""
    direction: Array
    """e (M,) of length 1, turned so that mu - u is a positive multiple of it at the end."""


@dataclass(frozen=True, eq=False)
class _Components:
    """What both questions need of mu: components of like |mu| are one, with their number."""

    order: NDArray[np.intp]
    """Which of the different components each one is, (M,)."""
    sign: Array
    share: Array
    """m_l^2, summed over those alike."""
    rate: Array
    """d_l/min d, rising from 1."""
    w: Array
    pull: Array
    """p_l (z_l - <z>) W_l e^{W_l}/min d, summed over those alike."""


def slowest(mu: ArrayLike, ratio: float, *, kappa: float = 1.0) -> Slowest:
    """The slowest direction of the block at its rest.

    Args:
        mu: (M,), where the attended weight rests; at least two components, none 0, not all alike.
        ratio: chi, C's eigenvalue along mu over the transverse one; rho_-^2 for Gaussian data
            (``joma.theory.critical_points.Linearisation.along`` over ``transverse`` in general).
        kappa: eta_z/(eta_w T^2), positive, with z the logit over T.

    Raises:
        InputError: mu or a number that makes no sense.
    """
    parts = _components("slowest", mu, kappa)
    chi = positive("slowest", "ratio", ratio)
    rate = _rate(parts, chi)
    return Slowest(rate * _unit(mu, kappa), _direction(parts, rate, chi))


def final_slope(mu: ArrayLike, ratio: float, *, kappa: float = 1.0) -> float:
    """How the entropy of softmax(z) changes at the end of the course: nats per unit of sqrt(kappa) u along e.

    Positive where it ends rising, i.e. where the block's attention bounces back. Arguments as of
    ``slowest``.
    """
    points, size = scaled_points("final_slope", mu, kappa)
    e = slowest(mu, ratio, kappa=kappa).direction * np.sign(points)
    w = lambert(np.square(size))
    p = np.exp(0.5 * (w - w.max()))
    p /= p.sum()
    return float(-np.sum(p * 0.5 * (w - p @ w) * w / (1.0 + w) * e / size))


def critical_ratio(mu: ArrayLike, *, kappa: float = 1.0) -> float:
    """chi_c in (0, 1): the block's entropy ends rising if and only if C's along/transverse ratio exceeds it.

    For Gaussian data the ratio is rho_-^2, so that the boundary lies at rho_- = -sqrt(chi_c). Arguments as of
    ``slowest``. It is one root of a monotone function, found to rounding.
    """
    parts = _components("critical_ratio", mu, kappa)
    apart = parts.rate - 1.0

    def course(t: float) -> float:
        """(1 - t) S at lambda = t min d."""
        return float(parts.pull[0] + np.sum(parts.pull[1:] * (1.0 - t) / (apart[1:] + (1.0 - t))))

    root = float(brentq(course, 0.0, 1.0, xtol=1e-16, rtol=8.9e-16))
    # R/(1 + R), multiplied by 1 - lambda/min d so that nothing is infinite where they meet.
    stays = 1.0 - root
    r = root * float(parts.share[0] + np.sum(parts.share[1:] * stays / (apart[1:] + stays)))
    return r / (stays + r)


def _components(where: str, mu: ArrayLike, kappa: float) -> _Components:
    points, size = scaled_points(where, mu, kappa)
    if points.ndim != 1 or points.size < 2:
        raise InputError(f"{where}: mu has shape {points.shape}; give a vector of at least two components.")
    sizes, order, number = np.unique(size, return_inverse=True, return_counts=True)
    if sizes.size < 2:
        raise InputError(
            f"{where}: all |mu| are alike ({sizes[0]:g}), so that attention stays uniform; let them differ."
        )
    w = lambert(np.square(sizes))
    grown = np.exp(w - w[0])
    p = number * np.exp(0.5 * (w - w.max()))
    p /= p.sum()
    share = number * np.square(sizes / sizes[-1])
    return _Components(
        order=order,
        sign=np.sign(points),
        share=share / share.sum(),
        rate=(1.0 + w) / (1.0 + w[0]) * grown,
        w=w,
        pull=p * 0.5 * (w - p @ w) * w / (1.0 + w[0]) * grown,
    )


def _unit(mu: ArrayLike, kappa: float) -> float:
    """min d."""
    w = lambert(np.square(scaled_points("slowest", mu, kappa)[1].min()))
    return float((1.0 + w) * np.exp(w))


def _rate(parts: _Components, chi: float) -> float:
    """lambda/min d: the secular equation's root below 1 (chi < 1), or from 1 to the next rate (chi > 1)."""
    if chi == 1.0:
        return 1.0
    apart = parts.rate - 1.0
    if chi < 1.0:

        def equation(t: float) -> float:
            left = 1.0 - t
            total = parts.share[0] + np.sum(parts.share[1:] * left / (apart[1:] + left))
            return float((1.0 - chi) * t * total - chi * left)

        return float(brentq(equation, 0.0, 1.0, xtol=1e-300, rtol=8.9e-16))
    gap = apart[1]

    def above(s: float) -> float:
        """The same at lambda = 1 + s gap, times s (1 - s) gap."""
        t = 1.0 + s * gap
        nearest = -parts.share[0] * (1.0 - s) + parts.share[1] * s
        rest = s * (1.0 - s) * gap * np.sum(parts.share[2:] / (apart[2:] - s * gap))
        return float((chi - 1.0) * t * (nearest + rest) + chi * s * (1.0 - s) * gap)

    return float(1.0 + gap * brentq(above, 0.0, 1.0, xtol=1e-300, rtol=8.9e-16))


def _direction(parts: _Components, rate: float, chi: float) -> Array:
    if rate == 1.0:
        entries = np.where(np.arange(parts.rate.size) == 0, np.sqrt(parts.share), 0.0)
    else:
        entries = parts.rate * np.exp(0.5 * parts.w) * np.sqrt(parts.w) / (parts.rate - rate)
        if chi > 1.0:
            entries = -entries
    e = parts.sign * entries[parts.order]
    return np.asarray(e / np.linalg.norm(e))

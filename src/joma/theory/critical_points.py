"""Lemma 4, Fig. 9 and Theorem 3 of JoMA: where the nonlinear MLP could come to rest, and whether it stays.

One positive and one negative class (amplitudes a_+ and -a_-), ReLU, both laws alike about xbar_+ and
xbar_-, implicit bias xi trained along. With rho_+- the signed distances of the centres, rest needs

    F(rho_+)/F(rho_-) = theta_1(rho_+)/theta_1(rho_-) = a_-/a_+                       (Eq. 56)

which the paper calls necessary and sufficient. It is not sufficient: v' = 0 also asks v to be parallel
to xbar_+ - xbar_-, so that |rho_+ - rho_-| = |xbar_+ - xbar_-| =: distance. Two unknowns then meet three
equations: for a given distance only special ratios a_-/a_+ have a critical point. And as the flow does
not know the length of (v, xi), critical points come as whole rays.

Eq. 56 asks the mean excess H = F/theta_1 to take one value twice. But F is the convolution of p_n with
the ramp max(., 0); if p_n is log-concave, so is F (Prekopa: the ramp is log-concave), and then
H = F/F' = 1/(ln F)' never falls. It rises strictly where the law is strictly log-concave: **with Gaussian
or uniform-ball data there is no critical point mu != 0 at all.** For the Laplace marginal H = 1 on all of
rho <= 0; heavier tails (multivariate t) do have them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from joma.core.arguments import finite, number, positive, whole
from joma.core.errors import InputError
from joma.theory.isotropic import RELU, HomogeneousGate, theta_derivatives
from joma.theory.isotropic_laws import IsotropicLaw, require_law

Array = NDArray[np.float64]


# --- Fig. 9 and Lemma 4 -------------------------------------------------------------------------


def G(law: IsotropicLaw, y: ArrayLike) -> Array:
    """Eq. 57: F(theta_1^-1(y)), 0 < y < 1, the curve of Fig. 9, with slope theta_1/p_n.

    Convex for y > 1/2, and everywhere for a log-concave law; heavy tails bend it down near 0. A line
    through the origin that meets it twice solves Eq. 56.
    """
    require_law("G", law)
    return law.F(law.theta_1_inverse(y))


def equation_58(law: IsotropicLaw) -> float:
    """theta_2(0) p_n(0), which Eq. 58 asks to be >= 1/4.

    Sufficient only, and strictly: the Laplace marginal has 1/4 exactly, t_3 has 2/pi^2 = .203 and
    critical points all the same. No log-concave law exceeds 1/4.
    """
    require_law("equation_58", law)
    return float(law.theta_2(0.0)) * float(law.density(0.0))


@dataclass(frozen=True)
class CriticalPoint:
    """A pair of signed distances that solves Eq. 56, and the ratio of amplitudes it needs.

    Then mu = +-(rho_+ - rho_-)/|..| along xbar_+ - xbar_-, of any length (a ray), with xi to match.
    """

    rho_minus: float
    rho_plus: float
    amplitude_ratio: float
    """a_-/a_+ = theta_1(rho_+)/theta_1(rho_-)."""

    @property
    def distance(self) -> float:
        """|xbar_+ - xbar_-|."""
        return abs(self.rho_plus - self.rho_minus)


@dataclass(frozen=True)
class Search:
    """What a search for critical points found: ``points`` (none is an answer, too), and ``continuum``.

    ``continuum`` is an interval of rho_- on which *every* value is critical, as for the Laplace
    marginal. ``least_rise`` is the least of ln H(rho + distance) - ln H(rho) over the search: positive
    where there is nothing to find.
    """

    points: tuple[CriticalPoint, ...]
    continuum: tuple[float, float] | None
    least_rise: float


def find_critical_points(
    law: IsotropicLaw, distance: float, *, low: float = -40.0, high: float = 10.0, grid: int = 2001
) -> Search:
    """All critical points for centres ``distance`` apart with rho_- in [low, high]: Lemma 4, whole.

    They are the roots of H(rho_- + distance) = H(rho_-); by symmetry of the two classes rho_+ > rho_-
    (exchange the classes for the others). Sign changes on ``grid`` points are refined to rounding. The
    dead region of a law of compact support (theta_1 = 0), where nothing moves, is left out.
    """
    where = "find_critical_points"
    require_law(where, law)
    distance, grid = positive(where, "distance", distance), whole(where, "grid", grid, least=2)
    low, high = max(number(where, "low", low), -law.support * (1 - 1e-9)), number(where, "high", high)
    if not low < high:
        raise InputError(f"find_critical_points: nothing to search in [{low:g}, {high:g}].")

    def rise(rho: ArrayLike) -> Array:
        at = np.asarray(rho, dtype=np.float64)
        return np.asarray(np.log(law.mean_excess(at + distance) / law.mean_excess(at)))

    rhos = np.linspace(low, high, grid)
    rises = rise(rhos)
    flat = np.abs(rises) < 1e-12
    continuum = (float(rhos[flat][0]), float(rhos[flat][-1])) if flat.sum() > 2 else None
    points = []
    # Neighbours of opposite sign; a grid point that is itself a root (flat) stands between its own.
    told = np.flatnonzero(~flat)
    for left, right in itertools.pairwise(told):
        if rises[left] * rises[right] < 0:
            rho = float(brentq(lambda x: float(rise(x)), rhos[left], rhos[right], xtol=1e-14, rtol=1e-14))
            points.append(_point(law, rho, rho + distance))
    return Search(tuple(points), continuum, float(rises.min()))


def partner(law: IsotropicLaw, rho_minus: float, *, high: float = 1e3) -> CriticalPoint | None:
    """The pair (rho_minus, rho_+ > rho_minus) of Eq. 56, whatever distance it takes; None if H never returns.

    H must fall behind rho_minus and rise through H(rho_minus) again further on. If ``rho_minus`` is
    itself within 1e-9 of where H turns, its partner is itself, and None is returned.
    """
    require_law("partner", law)
    rho_minus, high = number("partner", "rho_minus", rho_minus), number("partner", "high", high)
    level = float(law.mean_excess(rho_minus))
    steps = rho_minus + np.concatenate([np.geomspace(1e-6, 0.1, 40), np.linspace(0.15, 60.0, 1200)])
    above = law.mean_excess(steps) - level
    crossing = np.flatnonzero((above[:-1] < -1e-13 * level) & (above[1:] > 0) & (steps[1:] < high))
    if crossing.size == 0:
        return None
    left, right = steps[crossing[0]], steps[crossing[0] + 1]
    rho_plus = float(brentq(lambda x: float(law.mean_excess(x)) - level, left, right, xtol=1e-14, rtol=1e-14))
    return _point(law, rho_minus, rho_plus)


def opposite_signs_from(law: IsotropicLaw) -> float:
    """The distance of the centres from which on rho_- < 0 < rho_+ at a critical point: A.4's remark.

    A.4 says that y_- < 1/2 < y_+ "often", since a line meets the convex G twice at most. The pair of critical
    distances one of which is 0 decides: H(rho) = H(0). Nearer centres have both signed distances on the side
    to which H falls at 0: below it if theta_2(0) p(0) < 1/4 (t_3), above it if larger (t_1.5). It is 0 where
    H is least at 0 (t_2): then the signs always differ.

    Raises:
        InputError: a law without critical points (H rises everywhere), or with a continuum of them.
    """
    require_law("opposite_signs_from", law)
    level = float(law.mean_excess(0.0))

    def above(rho: float) -> float:
        return float(law.mean_excess(rho)) - level

    if equation_58(law) > 0.25 + 1e-12:
        pair = partner(law, 0.0)
        if pair is not None:
            return pair.distance
    else:
        apart = -np.geomspace(1e-4, 1e4, 200)
        apart = apart[apart > -law.support * (1 - 1e-9)]
        higher = np.flatnonzero(np.array([above(float(rho)) for rho in apart]) > 1e-11 * level)
        if higher.size and higher[0] == 0:
            return 0.0
        if higher.size:
            return -float(brentq(above, apart[higher[0]], apart[higher[0] - 1], xtol=1e-13, rtol=1e-13))
    raise InputError(f"opposite_signs_from: {law.name} has no pair of critical distances one of which is 0.")


def _point(law: IsotropicLaw, rho_minus: float, rho_plus: float) -> CriticalPoint:
    return CriticalPoint(
        rho_minus, rho_plus, float(np.exp(law.log_theta_1(rho_plus) - law.log_theta_1(rho_minus)))
    )


# --- Theorem 3 ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Linearisation:
    """Theorem 3: v' = C (mu - v) near mu, C = s (beta_1 I + beta_2 mu mu'), xi held fixed."""

    beta_1: float
    beta_2: float
    s: int
    norm: float

    @property
    def transverse(self) -> float:
        """Eigenvalue of C across mu."""
        return self.s * self.beta_1

    @property
    def along(self) -> float:
        """Eigenvalue of C along mu."""
        return self.s * (self.beta_1 + self.beta_2 * self.norm**2)

    @property
    def stable(self) -> bool:
        """Whether C is positive definite."""
        return min(self.transverse, self.along) > 0

    def matrix(self, mu: ArrayLike) -> Array:
        """C for this mu, (d, d)."""
        m = finite("Linearisation.matrix", "mu", mu)
        if m.ndim != 1 or not np.isclose(np.linalg.norm(m), self.norm):
            raise InputError(f"Linearisation.matrix: mu must be a vector of length {self.norm:g}.")
        return self.s * (self.beta_1 * np.eye(m.size) + self.beta_2 * np.outer(m, m))


def linearise(
    law: IsotropicLaw,
    *,
    norm: float,
    rho_minus: float,
    distance: float,
    a_plus: float,
    a_minus: float,
    s: int = 1,
    gate: HomogeneousGate = RELU,
) -> Linearisation:
    """Theorem 3's C(mu), corrected, for xbar_- = 0 and xi = norm * rho_minus held fixed.

        beta_1 = a_+ X theta_1(rho_+)/l > 0,    X = |xbar_+|, l = |mu|, rho_+ = s X + rho_-
        beta_2 = -(1/l^2) [beta_1 + s (rho_-^2/l) (a_+ p(rho_+) - a_- p(rho_-))] (p times c_+ - c_-)

    mu must be critical for v at this xi: a_+ [theta_1(rho_+) X s + theta_2(rho_+)] = a_- theta_2(rho_-).
    The eigenvalue along mu is (rho_-^2/l)(a_- p(rho_-) - a_+ p(rho_+)), hence stable if and only if
    s = +1, rho_- != 0 and a_- p(rho_-) > a_+ p(rho_+). In the joint flow of (v, xi) the ray itself is
    always neutral, so semi-stability is the best there is.
    """
    require_law("linearise", law)
    if not isinstance(gate, HomogeneousGate):
        raise InputError(f"linearise: gate = {gate!r}; give a HomogeneousGate.")
    a_minus = number("linearise", "a_minus", a_minus)
    rho_plus = _check(norm, rho_minus, distance, a_plus, s)
    theta_1 = gate.minus + (gate.plus - gate.minus) * float(law.theta_1(rho_plus))
    slope_plus, slope_minus = (float(theta_derivatives(law, gate, r)[0]) for r in (rho_plus, rho_minus))
    beta_1 = a_plus * distance * theta_1 / norm
    bracket = beta_1 + s * rho_minus**2 / norm * (a_plus * slope_plus - a_minus * slope_minus)
    return Linearisation(beta_1=beta_1, beta_2=-bracket / norm**2, s=s, norm=norm)


def linearise_printed(
    law: IsotropicLaw, *, norm: float, rho_minus: float, distance: float, a_plus: float, s: int = 1
) -> Linearisation:
    """Eq. 73-74 as printed (without s, which the print counts twice), ReLU.

    They rest on the printed Lemma 1, with r = |mu| rho and xi = |mu| rho_- in place of rho. For s = +1
    and xi <= 0 the eigenvalue along mu is always negative: under the paper's own remark xi < 0 this C is
    never positive definite.
    """
    require_law("linearise_printed", law)
    rho_plus = _check(norm, rho_minus, distance, a_plus, s)
    r, xi = norm * rho_plus, norm * rho_minus
    theta_1 = float(law.theta_1(r))
    return Linearisation(
        beta_1=a_plus * distance / norm**2 * theta_1,
        beta_2=a_plus * distance / norm**4 * (xi * float(law.density(r)) - 2 * theta_1),
        s=s,
        norm=norm,
    )


def balancing_ratio(law: IsotropicLaw, rho_minus: float, distance: float, *, s: int = 1) -> float:
    """a_-/a_+ at which v' = 0 for xi held fixed (xbar_- = 0, ReLU), whatever xi' is.

    (theta_1(rho_+) s X + theta_2(rho_+))/theta_2(rho_-). A critical point of the *joint* flow must be one
    of ``find_critical_points`` besides.
    """
    require_law("balancing_ratio", law)
    rho_plus = _check(1.0, rho_minus, distance, 1.0, s)
    needed = float(law.theta_2(rho_minus))
    if needed <= 0:
        raise InputError(f"balancing_ratio: theta_2({rho_minus:g}) = 0, nothing pulls back there.")
    return (s * distance * float(law.theta_1(rho_plus)) + float(law.theta_2(rho_plus))) / needed


def _check(norm: float, rho_minus: float, distance: float, a_plus: float, s: int) -> float:
    if s not in (1, -1):
        raise InputError(f"critical_points: s = {s!r}; it is the sign of mu.xbar_+, +1 or -1.")
    for name, value in (("norm", norm), ("distance", distance), ("a_plus", a_plus)):
        if not 1e-75 < positive("critical_points", name, value) < 1e75:
            raise InputError(
                f"critical_points: the fourth power of {name} = {value:g} is beyond float64; rescale it."
            )
    if not abs(number("critical_points", "rho_minus", rho_minus)) < 1e75:
        raise InputError(
            f"critical_points: rho_minus = {rho_minus:g} is far beyond any law; ask nearer to 0."
        )
    return s * distance + rho_minus

"""Isotropic laws, seen along one direction: what Lemmas 1-5 of JoMA need of them.

For x isotropic about its mean, every projection s on a unit vector has the same even density p_n. With
the ReLU gate the lemmas need, at the signed distance rho of the mean from the hyperplane,

    theta_1(rho) = P[s > -rho],    theta_2(rho) = E[s; s > -rho],
    F(rho) = E[(s + rho)_+] = theta_2 + rho theta_1,

and the mean excess H = F/theta_1. Each law gives two functions of x >= 0, the logarithm of its tail
P[s > x] and the mean excess E[s - x | s > x], both without cancellation; everything else follows, and is
right relative to its own size out to rho = -40 and beyond (``log_theta_1`` and ``log_F`` where the value
itself is below every float).
"""

from __future__ import annotations

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.integrate import IntegrationWarning, quad
from scipy.optimize import brentq

from joma.core.arguments import finite, number, whole
from joma.core.errors import InputError

Array = NDArray[np.float64]


class IsotropicLaw(ABC):
    """The one-dimensional marginal of an isotropic law, with mean 0. All functions are elementwise."""

    name: str
    support: float = np.inf
    """|s| stays below this."""
    log_concave: bool | None = None
    """Whether p_n is log-concave; None where nobody has said."""

    @abstractmethod
    def density(self, s: ArrayLike) -> Array:
        """p_n(s)."""

    @abstractmethod
    def _log_tail(self, x: Array) -> Array:
        """ln P[s > x], x >= 0."""

    @abstractmethod
    def _excess(self, x: Array) -> Array:
        """E[s - x | s > x], x >= 0; 0 where P[s > x] = 0."""

    def sample(self, rng: np.random.Generator, size: int, dimension: int) -> Array:
        """Vectors of this law, (size, dimension)."""
        raise InputError(f"{self.name}: vectors of this law cannot be drawn; give Gaussian, ball or t.")

    def _tail_inverse(self, y: Array) -> Array:
        """x >= 0 with P[s > x] = y, 0 < y <= 1/2."""
        return np.asarray(np.vectorize(self._one_tail_inverse, otypes=[float])(y))

    def _one_tail_inverse(self, y: float) -> float:
        high = 1.0 if np.isinf(self.support) else self.support
        while np.isinf(self.support) and float(self._log_tail(np.asarray(high))) > np.log(y):
            high *= 2.0
        if y == 0.5:
            return 0.0
        return float(
            brentq(lambda x: float(self._log_tail(np.asarray(x))) - np.log(y), 0.0, high, xtol=1e-15)
        )

    def _at(self, function: str, value: ArrayLike, name: str = "rho") -> Array:
        return finite(f"{self.name}: {function}", name, value)

    def _refuse_lost_digits(self, function: str, value: Array) -> Array:
        """A result, unless the law's quadrature or its quotients have left the floats."""
        if not np.isfinite(value).all():
            raise InputError(f"{self.name}: {function} is beyond float64 so far out; ask nearer to 0.")
        return np.asarray(value)

    def theta_1(self, rho: ArrayLike) -> Array:
        """P[s > -rho]: the share of the law on the gate's open side."""
        at = self._at("theta_1", rho)
        tail = np.exp(self._log_tail(np.abs(at)))
        return np.asarray(np.where(at > 0, 1.0 - tail, tail))

    def theta_2(self, rho: ArrayLike) -> Array:
        """E[s; s > -rho], even in rho; >= 0, and 0 beyond the support (printed: > 0)."""
        x = np.abs(self._at("theta_2", rho))
        with np.errstate(all="ignore"):
            return self._refuse_lost_digits("theta_2", np.exp(self._log_tail(x)) * (self._excess(x) + x))

    def F(self, rho: ArrayLike) -> Array:
        """E[(s + rho)_+] = theta_2 + rho theta_1 (Lemma 3), with F' = theta_1."""
        at = self._at("F", rho)
        x = np.abs(at)
        with np.errstate(all="ignore"):
            return self._refuse_lost_digits(
                "F", np.exp(self._log_tail(x)) * self._excess(x) + np.maximum(at, 0.0)
            )

    def log_theta_1(self, rho: ArrayLike) -> Array:
        """ln theta_1; -inf in the dead region."""
        at = self._at("log_theta_1", rho)
        tail = self._log_tail(np.abs(at))
        return np.asarray(np.where(at > 0, np.log1p(-np.exp(np.minimum(tail, -np.log(2.0)))), tail))

    def log_F(self, rho: ArrayLike) -> Array:
        """ln F."""
        return self.log_theta_1(rho) + np.log(self.mean_excess(rho))

    def mean_excess(self, rho: ArrayLike) -> Array:
        """H(rho) = F/theta_1 = E[s + rho | s > -rho]; InputError in the dead region theta_1 = 0."""
        at = self._at("mean_excess", rho)
        if np.any(at <= -self.support):
            raise InputError(
                f"{self.name}: mean_excess at rho <= -{self.support:g}, where the gate is shut for every "
                "sample (theta_1 = F = 0); ask at larger rho."
            )
        x = np.abs(at)
        with np.errstate(all="ignore"):
            excess = self._excess(x)
            tail = np.exp(self._log_tail(x))
            above = (tail * excess + x) / (1.0 - np.where(at > 0, tail, 0.0))
        return self._refuse_lost_digits("mean_excess", np.where(at > 0, above, excess))

    def theta_1_inverse(self, y: ArrayLike) -> Array:
        """rho with theta_1(rho) = y, 0 < y < 1."""
        at = self._at("theta_1_inverse", y, "y")
        if not np.all((at > 0) & (at < 1)):
            raise InputError(f"{self.name}: theta_1_inverse is defined for 0 < y < 1; got {y!r}.")
        x = self._tail_inverse(np.minimum(at, 1.0 - at))
        return np.asarray(np.where(at < 0.5, -x, x))


def _half_beta(a: float, x: Array) -> Array:
    """P[s > x] for the density (1 - s^2)^(a-1) on [-1, 1], 0 <= x <= 1, from whichever end is near."""
    near = 0.5 - 0.5 * special.betainc(0.5, a, np.square(x))
    return np.asarray(np.where(x < 0.5, near, 0.5 * special.betainc(a, 0.5, (1.0 - x) * (1.0 + x))))


class Gaussian(IsotropicLaw):
    """N(0, I) in any dimension: theta_1 = Phi(rho), theta_2 = phi(rho)."""

    name = "Gaussian"
    log_concave = True

    def sample(self, rng: np.random.Generator, size: int, dimension: int) -> Array:
        """Standard normal vectors."""
        return rng.standard_normal((size, dimension))

    def density(self, s: ArrayLike) -> Array:
        """The standard normal density."""
        at = self._at("density", s, "s")
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(-0.5 * np.square(at)) / np.sqrt(2 * np.pi))

    def _log_tail(self, x: Array) -> Array:
        return np.asarray(special.log_ndtr(-x))

    def _excess(self, x: Array) -> Array:
        # 1/m - x for the Mills ratio m cancels at large x; there, Laplace's continued fraction
        # 1/(x + 2/(x + 3/(x + ...))), which does not.
        far = np.maximum(x, 3.0)
        fraction = far
        for term in range(60, 1, -1):
            fraction = far + term / fraction
        mills = np.sqrt(np.pi / 2) * special.erfcx(np.minimum(x, 3.0) / np.sqrt(2))
        return np.asarray(np.where(x > 3.0, 1.0 / fraction, 1.0 / mills - np.minimum(x, 3.0)))

    def _tail_inverse(self, y: Array) -> Array:
        return np.asarray(-special.ndtri(y))


class UniformBall(IsotropicLaw):
    """Uniform on the unit ball of dimension n >= 1: p_n = c (1 - s^2)^((n-1)/2) on [-1, 1]."""

    support = 1.0
    log_concave = True

    def __init__(self, dimension: int) -> None:
        self.dimension = whole("UniformBall", "dimension", dimension)
        self.name = f"uniform ball, n = {dimension}"
        self._c = float(
            np.exp(special.gammaln(dimension / 2 + 1) - special.gammaln((dimension + 1) / 2)) / np.sqrt(np.pi)
        )

    def sample(self, rng: np.random.Generator, size: int, dimension: int) -> Array:
        """Points of the unit ball; its dimension must be the one asked for."""
        if dimension != self.dimension:
            raise InputError(f"{self.name}: has no vectors of dimension {dimension}.")
        direction = rng.standard_normal((size, dimension))
        radius = rng.random((size, 1)) ** (1.0 / dimension)
        return np.asarray(direction * radius / np.linalg.norm(direction, axis=1, keepdims=True))

    def density(self, s: ArrayLike) -> Array:
        """c (1 - s^2)^((n-1)/2) inside the ball, 0 outside."""
        at = np.clip(self._at("density", s, "s"), -1.0, 1.0)
        room = np.maximum((1.0 - at) * (1.0 + at), 0.0)
        return np.asarray(np.where(np.abs(at) < 1.0, self._c * room ** ((self.dimension - 1) / 2), 0.0))

    def _log_tail(self, x: Array) -> Array:
        half = _half_beta((self.dimension + 1) / 2, np.minimum(x, 1.0))
        return np.log(half, out=np.full(np.shape(half), -np.inf), where=half > 0)

    def _excess(self, x: Array) -> Array:
        # Both integrals of (1 - s)^k p_n over [x, 1] are hypergeometric in (1 - x)/2 <= 1/2.
        a, room = (self.dimension + 1) / 2, np.clip(1.0 - x, 0.0, 1.0)
        upper = special.hyp2f1(1.0 - a, a, a + 2.0, 0.5 * room)
        return np.asarray(room / (a + 1.0) * upper / special.hyp2f1(1.0 - a, a, a + 1.0, 0.5 * room))


class MultivariateT(IsotropicLaw):
    """Multivariate t with ``nu`` degrees of freedom, whose marginal is t_nu in every dimension."""

    log_concave = False

    def __init__(self, nu: float) -> None:
        if not number("MultivariateT", "nu", nu) > 1:
            raise InputError(
                f"MultivariateT: nu = {nu:g} has no mean, so theta_2 and F are infinite; give nu > 1."
            )
        self.nu = float(nu)
        self.name = f"multivariate t, nu = {nu:g}"

    def sample(self, rng: np.random.Generator, size: int, dimension: int) -> Array:
        """Normal vectors over a common chi."""
        spread = np.sqrt(rng.chisquare(self.nu, (size, 1)) / self.nu)
        return np.asarray(rng.standard_normal((size, dimension)) / spread)

    def density(self, s: ArrayLike) -> Array:
        """Student's density."""
        nu = self.nu
        log_c = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
        with np.errstate(over="ignore"):
            square = np.square(self._at("density", s, "s"))
        return np.asarray(np.exp(log_c - 0.5 * (nu + 1) * np.log1p(square / nu)))

    def _log_tail(self, x: Array) -> Array:
        return np.asarray(np.log(special.stdtr(self.nu, -x)))

    def _excess(self, x: Array) -> Array:
        # theta_2 = p (nu + x^2)/(nu - 1); the difference loses a factor nu of precision at most.
        theta_2 = self.density(x) * (self.nu + x * x) / (self.nu - 1.0)
        return np.asarray(theta_2 / special.stdtr(self.nu, -x) - x)

    def _tail_inverse(self, y: Array) -> Array:
        return np.asarray(-special.stdtrit(self.nu, y))


class LaplaceMarginal(IsotropicLaw):
    """The isotropic law whose marginal is exp(-|s|)/2: the boundary of log-concavity, H = 1 for rho <= 0."""

    name = "Laplace marginal"
    log_concave = True

    def density(self, s: ArrayLike) -> Array:
        """exp(-|s|)/2."""
        return np.asarray(0.5 * np.exp(-np.abs(self._at("density", s, "s"))))

    def _log_tail(self, x: Array) -> Array:
        return np.asarray(-np.log(2.0) - x)

    def _excess(self, x: Array) -> Array:
        return np.ones_like(x)

    def _tail_inverse(self, y: Array) -> Array:
        return np.asarray(-np.log(2.0 * y))


class RadialLaw(IsotropicLaw):
    """A law given by its density ``p0(|x|)`` in n dimensions, by quadrature over the radius (Eq. 33-36).

    Each function costs one integral per point; relative accuracy some 1e-9.
    """

    def __init__(
        self, radial_density: Callable[[float], float], dimension: int, *, support: float = np.inf
    ) -> None:
        dimension = whole("RadialLaw", "dimension", dimension)
        if not callable(radial_density):
            raise InputError(
                f"RadialLaw: radial_density = {radial_density!r} is not a function; give p0 of the radius."
            )
        if support != np.inf and not number("RadialLaw", "support", support) > 0:
            raise InputError(f"RadialLaw: support = {support!r} must be positive.")
        self.name = f"radial law, n = {dimension}"
        self.dimension, self.support = dimension, support
        self._p0 = radial_density
        half = dimension / 2
        self._surface = float(dimension * np.exp(half * np.log(np.pi) - special.gammaln(half + 1)))
        mass = self._over_radius(lambda r: 1.0, 0.0)
        if not abs(mass - 1.0) < 1e-6:
            raise InputError(
                f"RadialLaw: the density integrates to {mass:.6g} over {dimension} dimensions, not to 1; "
                "normalise it."
            )
        self._over_radius(lambda r: r, 0.0)

    def _over_radius(self, value: Callable[[float], float], x: float) -> float:
        """E[value(R); R > x], R = |x|."""
        if x >= self.support:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("error", IntegrationWarning)
            try:
                pieces = (
                    sorted({x, x + 1.0, x + 8.0, self.support})
                    if np.isinf(self.support)
                    else [x, self.support]
                )
                return sum(
                    quad(
                        lambda r: value(r) * self._surface * r ** (self.dimension - 1) * self._p0(r),
                        a,
                        b,
                        epsabs=0.0,
                        epsrel=1e-10,
                        limit=200,
                    )[0]
                    for a, b in itertools.pairwise(pieces)
                )
            except IntegrationWarning as problem:
                raise InputError(
                    f"{self.name}: an integral over the radius does not converge; the law needs a finite "
                    f"mean of |x| and a smooth density ({str(problem).splitlines()[0]})."
                ) from None

    def density(self, s: ArrayLike) -> Array:
        """p_n(s) by Eq. 35."""
        n = self.dimension

        def one(s: float) -> float:
            if n == 1:
                return self._p0(abs(s)) if abs(s) < self.support else 0.0
            front = (n - 1) * np.pi ** ((n - 1) / 2) / special.gamma((n + 1) / 2)
            end = np.inf if np.isinf(self.support) else np.sqrt(max(self.support**2 - s * s, 0.0))
            return float(
                front * quad(lambda r: self._p0(np.hypot(s, r)) * r ** (n - 2), 0.0, end, epsrel=1e-11)[0]
            )

        return self._refuse_lost_digits(
            "density", np.vectorize(one, otypes=[float])(self._at("density", s, "s"))
        )

    def _sphere_tail(self, u: float) -> float:
        if self.dimension == 1:
            return 0.5
        return float(_half_beta((self.dimension - 1) / 2, np.asarray(u)))

    def _sphere_partial_mean(self, u: float) -> float:
        if self.dimension == 1:
            return 0.5
        n = self.dimension
        c = np.exp(special.gammaln(n / 2) - special.gammaln((n - 1) / 2)) / np.sqrt(np.pi)
        return float(c * ((1 - u) * (1 + u)) ** ((n - 1) / 2) / (n - 1))

    def _log_tail(self, x: Array) -> Array:
        def one(x: float) -> float:
            tail = self._over_radius(lambda r: self._sphere_tail(x / r), x)
            return float(np.log(tail)) if tail > 0 else -np.inf

        return np.asarray(np.vectorize(one, otypes=[float])(x))

    def _excess(self, x: Array) -> Array:
        def one(x: float) -> float:
            tail = self._over_radius(lambda r: self._sphere_tail(x / r), x)
            if not tail > 0:
                return 0.0
            above = self._over_radius(
                lambda r: r * self._sphere_partial_mean(x / r) - x * self._sphere_tail(x / r), x
            )
            return above / tail

        return np.asarray(np.vectorize(one, otypes=[float])(x))


def require_law(where: str, law: IsotropicLaw) -> None:
    """Refuse what is no ``IsotropicLaw``."""
    if not isinstance(law, IsotropicLaw):
        raise InputError(f"{where}: law = {law!r} is no IsotropicLaw; give one, such as Gaussian().")

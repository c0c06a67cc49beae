"""Eq. 6 solved exactly, Lemmas 6-7 and Theorem 4 of JoMA: which components are learned first.

With attention folded into the MLP, each component of the lower-layer weights ``v`` moves towards its
critical point ``mu`` on its own,

    v' = (mu - v) exp(v^2 / 2)                                                        (Eq. 6)

and from v(0) = 0 the course is ``F(r(t), mu) = t`` with r = v/mu and

    F(r, mu) = int_0^r exp(-mu^2 x^2 / 2) / (1 - x) dx                                (Eq. 79)
             = exp(-mu^2 / 2) ln 1/(1 - r) + R(r, mu),    0 <= R(r, mu) <= R(1, mu) <= 0.8644.

The paper uses that F is *equal* for all components (Eq. 80); that it equals the time makes the whole
course a matter of inverting one function, which ``solve`` does to rounding.

Convergence is measured by ``L = ln 1/delta``, ``delta = |1 - v/mu|`` everywhere here, because delta
itself falls below every float. Learning rates and the temperature T of the attention logits enter as
``kappa = eta_z / (eta_w T^2)`` and ``rate = eta_w``:

    v' = rate (mu - v) exp(kappa v^2 / 2)

which is Eq. 6 for sqrt(kappa) v, sqrt(kappa) mu and the time rate * t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import dawsn, erf

from joma.core.arguments import broadcast, finite, number, numbers, positive, within_floats
from joma.core.errors import InputError
from joma.theory.separable_time import Clock, blocks

Array = NDArray[np.float64]

PRINTED_BOUND = float(np.sqrt(np.pi / 2) + 1)
"""The constant of Eq. 88; true, but ``sharp_bound`` is the least one."""
PRINTED_LAMBDA_BOUND = float(np.sqrt(2 * np.pi) + 2)
"""The constant of Theorem 4; true, but the difference of two terms in [0, B] is already below B."""

# exp(mu^2 / 2) must be a float, with room for times and ratios.
_LARGEST_EXPONENT = 700.0
_LARGEST_GAP = 1e150


@dataclass(frozen=True)
class Course:
    """Components on their way to their critical points.

    ``mu`` (m,), ``times`` (n,), ``log_inverse_delta`` (n, m) = ln 1/|1 - v/mu|, and ``side`` (m,):
    +1 where v/mu < 1 (growing towards mu), -1 where it comes from beyond.
    """

    mu: Array
    times: Array
    log_inverse_delta: Array
    side: Array

    @property
    def v(self) -> Array:
        """The weights, (n, m)."""
        share = -np.expm1(-self.log_inverse_delta)
        beyond = self.side < 0
        if np.any(beyond):
            share[:, beyond] = 1.0 + np.exp(-self.log_inverse_delta[:, beyond])
        share *= self.mu
        return np.asarray(share)

    @property
    def delta(self) -> Array:
        """|1 - v/mu|, (n, m); 0 where it is below the smallest float."""
        return np.asarray(np.exp(-self.log_inverse_delta))


# --- the exact solution -------------------------------------------------------------------------


def solve(
    mu: ArrayLike, times: ArrayLike, *, v0: ArrayLike = 0.0, kappa: float = 1.0, rate: float = 1.0
) -> Course:
    """Eq. 6 solved exactly, for all components and times at once.

    Args:
        mu: critical points, (m,), none of them zero; sqrt(kappa) |mu| at most 37.
        times: (n,), non-negative, in any order.
        v0: initial weights, (m,) or one for all; anything but mu itself, on either side.
        kappa: eta_z / (eta_w T^2), positive.
        rate: eta_w, positive.

    Accuracy: ``log_inverse_delta`` is as good as the time allows, i.e. its error is that of a
    relative error of some 1e-15 in ``times``. While a salient component converges (from
    t = R(1, mu) on, within exp(-mu^2/2)) the course itself is that sensitive to the time.

    Raises InputError for shapes, signs or sizes outside the above.
    """
    scaled, side, start = _components(mu, v0, kappa)
    t = np.atleast_1d(numbers("salience.solve", "times", times))
    if t.ndim != 1 or not np.all(np.isfinite(t)) or np.any(t < 0):
        raise InputError("salience.solve: times must be a vector of finite, non-negative numbers.")
    rate = positive("salience.solve", "rate", rate)
    if t.size and np.log(rate) + np.log(max(t.max(), 1.0)) + 0.5 * scaled.max() ** 2 > 709.0:
        raise InputError(
            f"salience.solve: by time {t.max():g} ln 1/delta is beyond float64; ask for earlier times."
        )
    course = np.empty((scaled.size, t.size))
    order = np.argsort(t, kind="stable")
    rising = rate * t[order]
    for block in blocks(scaled):
        course[block] = Clock.build(scaled[block], side[block], start[block]).position(rising)
    if np.any(np.diff(order) != 1):
        course[:, order] = course.copy()
    return Course(_vector(mu), t, course.T, side)


def elapsed_time(
    mu: ArrayLike,
    log_inverse_delta: ArrayLike,
    *,
    v0: ArrayLike = 0.0,
    kappa: float = 1.0,
    rate: float = 1.0,
) -> Array:
    """The time at which ln 1/delta reaches a value: the inverse of ``solve``.

    ``mu``, ``v0`` and ``log_inverse_delta`` broadcast together; the result has their shape.
    From v0 = 0 it is F of Eq. 79. Raises InputError where the course starts beyond the value asked.
    """
    rate = positive("salience.elapsed_time", "rate", rate)
    mus, starts, wanted = broadcast(
        "salience.elapsed_time", mu=mu, v0=v0, log_inverse_delta=log_inverse_delta
    )
    pairs, which = np.unique(np.stack([mus.ravel(), starts.ravel()], axis=1), axis=0, return_inverse=True)
    scaled, side, start = _components(pairs[:, 0], pairs[:, 1], kappa)
    flat, which = wanted.ravel(), which.ravel()
    if np.any(flat < start[which]):
        raise InputError(
            "salience.elapsed_time: log_inverse_delta lies before the start, ln 1/|1 - v0/mu|; "
            "ask for a value that the course reaches."
        )
    out = np.empty(flat.size)
    grouped = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[grouped], np.arange(scaled.size + 1))
    for block in blocks(scaled):
        clock = Clock.build(scaled[block], side[block], start[block])
        for row, component in enumerate(block):
            members = grouped[bounds[component] : bounds[component + 1]]
            out[members] = clock.time(row, flat[members])
    return np.asarray(out.reshape(wanted.shape) / rate)


def F(r: ArrayLike, mu: ArrayLike) -> Array:
    """Eq. 79: int_0^r exp(-mu^2 x^2/2)/(1 - x) dx, for 0 <= r < 1; broadcasts. mu may be zero.

    Equal to the time along Eq. 6 from v(0) = 0. Where r is within rounding of one, use
    ``elapsed_time``, which takes ln 1/(1 - r) instead.
    """
    ratio, mus = broadcast("salience.F", r=r, mu=mu)
    if not np.all((ratio >= 0) & (ratio < 1)):
        raise InputError("salience.F: r must lie in [0, 1); it is v/mu, and 1 is reached only at t = inf.")
    log_inverse_delta = np.array(-np.log1p(-ratio))
    out = log_inverse_delta.copy()
    moving = mus != 0
    if np.any(moving):
        out[moving] = elapsed_time(mus[moving], log_inverse_delta[moving])
    return out


def R(mu: ArrayLike, r: ArrayLike = 1.0) -> Array:
    """What remains of F beside exp(-mu^2/2) ln 1/(1 - r); at r = 1 its limit. Broadcasts.

    R(r, mu) = int_0^r (exp(-mu^2 x^2/2) - exp(-mu^2/2)) / (1 - x) dx, rising in r (Eq. 88).
    """
    mus, ratio = broadcast("salience.R", mu=mu, r=r)
    if not np.all((ratio >= 0) & (ratio <= 1)):
        raise InputError("salience.R: r must lie in [0, 1].")
    flat_mu, flat_r = np.atleast_1d(mus).ravel(), np.atleast_1d(ratio).ravel()
    out = np.zeros(flat_mu.size)
    for i in np.flatnonzero(flat_mu != 0):
        scaled, side, start = _components(flat_mu[i], 0.0, 1.0)
        clock = Clock.build(scaled, side, start)
        if flat_r[i] == 1.0:
            out[i] = clock.offset[0]
        else:
            s = -np.log1p(-flat_r[i : i + 1])
            out[i] = (clock.time(0, s) - np.exp(-0.5 * scaled**2) * s)[0]
    return np.asarray(out.reshape(mus.shape))


def zeta(r: ArrayLike, mu: ArrayLike) -> Array:
    """Eq. 84: sqrt(pi/2) erf(r mu/sqrt 2) + (1 - exp(-r^2 mu^2/2))/mu, for 0 <= r <= 1, mu > 0; broadcasts.

    dF/dmu = zeta - mu F. Bounded by sqrt(pi/2) + r/2 (printed: + r); its supremum is 1.6328.
    """
    ratio, mus = broadcast("salience.zeta", r=r, mu=mu)
    if np.any((mus <= 0) | (ratio < 0) | (ratio > 1)):
        raise InputError("salience.zeta: mu must be positive and r lie in [0, 1].")
    y = ratio * mus
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.pi / 2) * erf(y / np.sqrt(2)) - np.expm1(-0.5 * y * y) / mus)


# --- Lemmas 6 and 7 -----------------------------------------------------------------------------


def lemma_6(y: ArrayLike) -> Array:
    """g(y) = (1 - exp(-y^2))/y, 0 at y = 0. The lemma bounds it by 1/sqrt 2; loose, see the maximum."""
    at = finite("salience.lemma_6", "y", y)
    with np.errstate(over="ignore"):
        return np.asarray(np.divide(-np.expm1(-at * at), at, out=np.zeros_like(at), where=at != 0))


def lemma_6_maximum() -> tuple[float, float]:
    """(argmax, maximum) of ``lemma_6``: the root of exp(y^2) = 1 + 2 y^2 (Eq. 75)."""
    y = float(brentq(lambda y: np.expm1(y * y) - 2 * y * y, 0.5, 2.0, xtol=1e-15))
    return y, float(lemma_6(y))


def lemma_7(y: ArrayLike) -> Array:
    """exp(-y^2/2) int_0^y exp(x^2/2) dx, which is sqrt 2 times Dawson's function of y/sqrt 2.

    The lemma bounds it by 1 for y >= 0; loose, see the maximum.
    """
    return np.asarray(np.sqrt(2) * dawsn(finite("salience.lemma_7", "y", y) / np.sqrt(2)))


def lemma_7_maximum() -> tuple[float, float]:
    """(argmax, maximum) of ``lemma_7``, whose derivative is 1 - y lemma_7(y): one is 1/other."""
    y = float(brentq(lambda y: 1 - y * float(lemma_7(y)), 0.5, 3.0, xtol=1e-15))
    return y, float(lemma_7(y))


# --- Theorem 4 ----------------------------------------------------------------------------------


def sharp_bound() -> tuple[float, float]:
    """(argmax, max) over mu of R(1, mu): the least constant for Eq. 88 and for |lambda| alike.

    The paper has sqrt(pi/2) + 1 and sqrt(2 pi) + 2. From Eq. 85, dR/dmu = zeta(1, mu) - mu R.
    """
    mu = float(brentq(lambda m: float(zeta(1.0, m)) - m * float(R(m)), 1.0, 3.0, xtol=1e-14))
    return mu, float(R(mu))


def asymptotic_ratio(mu_j: ArrayLike, mu_k: ArrayLike, *, kappa: float = 1.0) -> Array:
    """Theorem 4, Eq. 7, in the limit: exp(kappa (mu_j^2 - mu_k^2)/2).

    The paper's remarks write exp(mu^2) for exp(mu^2/2). For ``softmax(v^2/T)``, the authors' script,
    kappa = 2/T. Sizes as in ``solve``; broadcasts.
    """
    j, k = broadcast("salience.asymptotic_ratio", mu_j=mu_j, mu_k=mu_k)
    _check_final_rate(np.stack([j, k]), kappa)
    return np.asarray(np.exp(0.5 * kappa * (j - k) * (j + k)))


def convergence_ratio(
    mu_j: float, mu_k: float, log_inverse_delta_k: ArrayLike, *, kappa: float = 1.0
) -> tuple[Array, Array, Array]:
    """Theorem 4, Eq. 7, exactly: how far component j is when component k has come so far.

    From v(0) = 0, at the time when ln 1/delta_k = ``log_inverse_delta_k`` (any shape, positive).

    Returns:
        the ratio (ln 1/delta_j)/(ln 1/delta_k); Lambda, its relative deviation from
        exp(kappa (mu_j^2 - mu_k^2)/2); and lambda = Lambda exp(-kappa mu_k^2/2) ln 1/delta_k,
        which the theorem bounds. Each of the shape asked.
    """
    where = "salience.convergence_ratio"
    mu_j, mu_k = number(where, "mu_j", mu_j), number(where, "mu_k", mu_k)
    wanted = finite(where, "log_inverse_delta_k", log_inverse_delta_k)
    if np.any(wanted <= 0):
        raise InputError("salience.convergence_ratio: log_inverse_delta_k must be positive.")
    t = elapsed_time(mu_k, wanted.ravel(), kappa=kappa)
    ratio = solve([mu_j], t, kappa=kappa).log_inverse_delta[:, 0].reshape(wanted.shape) / wanted
    deviation = ratio / asymptotic_ratio(mu_j, mu_k, kappa=kappa) - 1
    return ratio, deviation, np.asarray(deviation * np.exp(-0.5 * kappa * mu_k**2) * wanted)


def needed_convergence(mu_k: ArrayLike, *, kappa: float = 1.0, constant: float | None = None) -> Array:
    """ln 1/delta_k beyond which |Lambda| < 1 is certain; it is << 1 far beyond: C exp(+kappa mu_k^2/2).

    C is the sharp constant unless ``constant`` is given (the paper's: ``PRINTED_LAMBDA_BOUND``).
    """
    where = "salience.needed_convergence"
    c = sharp_bound()[1] if constant is None else positive(where, "constant", constant)
    mus = finite(where, "mu_k", mu_k)
    _check_final_rate(mus, kappa)
    with np.errstate(over="ignore"):
        return within_floats(where, c * np.exp(0.5 * kappa * np.square(mus)), "give a smaller constant")


def needed_convergence_printed(mu_k: ArrayLike) -> Array:
    """The condition as printed, (sqrt(2 pi) + 2) exp(-mu_k^2): WRONG, sign and factor of the exponent.

    By it a component with mu = 2 would have converged enough at delta = 0.92.
    """
    mus = finite("salience.needed_convergence_printed", "mu_k", mu_k)
    with np.errstate(over="ignore"):
        return np.asarray(PRINTED_LAMBDA_BOUND * np.exp(-np.square(mus)))


# --- input --------------------------------------------------------------------------------------


def _vector(mu: ArrayLike) -> Array:
    return np.atleast_1d(numbers("salience", "mu", mu))


def _check_final_rate(mu: Array, kappa: float, name: str = "mu") -> None:
    """Refuse a kappa that is not positive and points where exp(kappa mu^2/2) is no float."""
    largest = np.sqrt(2 * _LARGEST_EXPONENT / positive("salience", "kappa", kappa))
    worst = float(np.max(np.abs(mu), initial=0.0))
    if worst > largest:
        raise InputError(
            f"salience: |{name}| = {worst:g} with kappa = {kappa:g}: the rate exp(kappa {name}^2/2) is "
            f"no float64; keep kappa {name}^2/2 below {_LARGEST_EXPONENT:g}."
        )


def _components(mu: ArrayLike, v0: ArrayLike, kappa: float) -> tuple[Array, Array, Array]:
    """sqrt(kappa) |mu|, the side from which mu is approached, and ln 1/|1 - v0/mu| at the start."""
    m = _vector(mu)
    if m.ndim != 1 or m.size == 0 or not np.all(np.isfinite(m)):
        raise InputError("salience: mu must be a vector of finite numbers, at least one.")
    if np.any(m == 0):
        raise InputError(
            "salience: a component of mu is 0, where delta = 1 - v/mu means nothing; leave it out."
        )
    _check_final_rate(m, kappa)
    v = finite("salience", "v0", v0)
    if v.shape not in ((), (1,), m.shape):
        raise InputError(f"salience: v0 has shape {v.shape}; give one finite number or {m.size} of them.")
    _check_final_rate(v, kappa, "v0")
    with np.errstate(over="ignore"):
        gap = 1.0 - v / m
    if not np.all(np.abs(gap) < _LARGEST_GAP):
        raise InputError("salience: the square of 1 - v0/mu is beyond float64; bring v0 and mu nearer.")
    if np.any(gap == 0):
        raise InputError("salience: a component starts at v0 = mu, where nothing moves; leave it out.")
    return np.sqrt(kappa) * np.abs(m), np.sign(gap), -np.log(np.abs(gap)) + 0.0

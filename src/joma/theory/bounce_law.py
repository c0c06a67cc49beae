"""How deep the block's attention entropy dips, and how far it bounces back: a law in closed form.

Along the block flow (``joma.theory.block_salience``; here m = sqrt(kappa) mu and x = sqrt(kappa) v, so
that z = x^2/2 and y = x e^{x^2/2} is the attended weight, between 0 and m) time is exactly

    t = (1/m) [ sqrt(pi/2) erf(x/sqrt 2) + (x^2/2 + I)/m ],    I = int_0^y f(y') dy'/(m - y'),

with f = x^2/(1 + x^2). The first term is Theorem 2's: a flow without rest, whose winner would blow up at
sqrt(pi/2)/m. The second is the logit reached, the third the stay at the rest. In I only f is not elementary,
and it varies slowly: near its upper end it is a power of y' with exponent p = d ln f/d ln y = 2/(1 + x^2)^2.
Taking it for that power all along,

    I ~ f(y) r/(1 + p) 2F1(1, 1 + p; 2 + p; r),    r = y/m,

which is exact both for small and for large weights. So every component's time, hence every component at a
given time, hence the entropy of softmax(z) is known without integrating anything. The dip is the least of
it, found along the most salient component's course.

**With C = I every block bounces.** The rates (1 + W) e^W grow with |mu|, so the component that comes to rest
last is the one with the least |mu|, hence the least logit; while it alone still rises towards the others, the
entropy rises. Unless all |mu| are alike the entropy therefore ends rising. How visibly is another matter:
``saturated_overshoot`` is what a saturated winner's logit gap exceeds its rest by. With the paper's own
C(mu) it depends on the data: ``joma.theory.block_boundary``. And the law starts at v = 0, which a block
with a shut gate never leaves: ``joma.theory.escape_time``.

Here z is the attention logit over the temperature T, and kappa = eta_z/(eta_w T^2) belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, erf, erfinv, hyp2f1

from joma.core.arguments import broadcast
from joma.core.errors import InputError
from joma.theory.block_salience import elapsed_time, entropy, lambert, scaled_points, solve

Array = NDArray[np.float64]

# 2F1 is expanded about r = 1 beyond this ln 1/(1 - r), in so many terms, each a tenth of the one before.
_NEAR, _TERMS = 2.5, 14


@dataclass(frozen=True)
class BlockBounce:
    """The attention entropy along the block flow from v(0) = 0, in nats."""

    start: float
    """ln M."""
    least: float
    end: float
    time: float
    """When the entropy is least, in units of 1/eta_w."""

    @property
    def dip(self) -> float:
        """From the start down to the least."""
        return self.start - self.least

    @property
    def rebound(self) -> float:
        """From the least up to the end: the depth of the bounce."""
        return self.end - self.least


def time_law(log_inverse_delta: ArrayLike, m: ArrayLike) -> Array:
    """The closed form of t(L), L = ln 1/(1 - y/m), for m = sqrt(kappa) |mu|; broadcasts."""
    s, size = broadcast("time_law", log_inverse_delta=log_inverse_delta, m=m)
    ratio = -np.expm1(-s)
    w = lambert(np.square(size * ratio))
    f, p = w / (1.0 + w), 2.0 / np.square(1.0 + w)
    stay = f * _stay(s, p)
    return np.asarray((np.sqrt(np.pi / 2) * erf(np.sqrt(0.5 * w)) + (0.5 * w + stay) / size) / size)


def _stay(s: Array, p: Array) -> Array:
    """int_0^r (u/r)^p du/(1 - u) = r/(1 + p) 2F1(1, 1 + p; 2 + p; r), with r = 1 - e^-s."""
    gap, near = np.exp(-s), s > _NEAR
    ratio = np.where(near, 0.5, -np.expm1(-s))
    far = ratio / (1.0 + p) * hyp2f1(1.0, 1.0 + p, 2.0 + p, ratio)
    # About r = 1 (Abramowitz and Stegun 15.3.10), where SciPy's 2F1 is not reliable.
    total, factor = np.zeros_like(far), np.ones_like(far)
    for n in range(_TERMS):
        total += factor * (digamma(n + 1.0) - digamma(n + 1.0 + p) + s)
        factor = factor * (n + 1.0 + p) / (n + 1.0) * gap
    return np.where(near, (1.0 - gap) * total, far)


def logits_at(time: float, m: Array) -> Array:
    """z of every component at a time by ``time_law``, (M,) for m (M,), by bisection in ln L."""
    low, high = np.full(m.shape, -60.0), np.full(m.shape, 80.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        early = time_law(np.exp(middle), m) < time
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    return 0.5 * lambert(np.square(m * np.expm1(-np.exp(low))))


def logits_law(times: ArrayLike, m: ArrayLike) -> Array:
    """z (n, M) of components m (M,) at ``times`` (n,): ``time_law`` inverted, by bisection in ln L."""
    t, size = np.asarray(times, dtype=np.float64)[:, None], np.asarray(m, dtype=np.float64)
    low, high = (np.full(np.broadcast_shapes(t.shape, size.shape), end) for end in (-60.0, 80.0))
    for _ in range(42):
        middle = 0.5 * (low + high)
        early = time_law(np.exp(middle), size) < t
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    return 0.5 * lambert(np.square(size * np.expm1(-np.exp(low))))


def bounce_law(mu: ArrayLike, *, kappa: float = 1.0) -> BlockBounce:
    """Dip and rebound of the entropy of softmax(z) by the closed form of time: no integration.

    Args:
        mu: (M,), at least two, none 0; signs do not matter.
        kappa: eta_z/(eta_w T^2), positive.
    """
    size = _sizes("bounce_law", mu, kappa)
    return _least(lambda s: time_law(s, size.max()), lambda t: logits_law(t, size), size)


def bounce_of_flow(mu: ArrayLike, *, kappa: float = 1.0) -> BlockBounce:
    """The same of the flow itself, solved to rounding (``joma.theory.block_salience.solve``)."""
    size = _sizes("bounce_of_flow", mu, kappa)
    return _least(lambda s: elapsed_time(size.max(), s), lambda t: solve(size, t).logits, size)


def saturated_overshoot(mu_j: ArrayLike, mu_k: ArrayLike, *, kappa: float = 1.0) -> Array:
    """The leading law: by how much the logit gap of j over k exceeds its rest when j has saturated; nats.

    At Theorem 2's blow-up of the winner j, k stands at q = sqrt(2) erfinv(|mu_k/mu_j|). If j is at its rest
    by then (large W_j) the gap is (W_j - q^2)/2; at rest it is (W_j - W_k)/2. So it overshoots by
    (W_k - q^2)/2, W = W(kappa mu^2). Broadcasts; |mu_k| below |mu_j|.
    """
    where = "saturated_overshoot"
    j, k = broadcast(where, mu_j=mu_j, mu_k=mu_k)
    first, second = scaled_points(where, j, kappa)[1], scaled_points(where, k, kappa)[1]
    if np.any(second >= first):
        raise InputError(f"{where}: |mu_k| must be below |mu_j|.")
    return np.asarray(0.5 * lambert(np.square(second)) - np.square(erfinv(second / first)))


def _sizes(where: str, mu: ArrayLike, kappa: float) -> Array:
    points, size = scaled_points(where, mu, kappa)
    if points.ndim != 1 or points.size < 2:
        raise InputError(f"{where}: mu has shape {points.shape}; give a vector of at least two components.")
    return size


def _least(clock: Callable[[Array], Array], logits: Callable[[Array], Array], size: Array) -> BlockBounce:
    """The least entropy along the course of the most salient component, by zooming in on it."""
    scale = max(float(size.max()), 1.0)
    low, high = np.log(0.02 / scale), np.log(1e3 * scale)
    for points in (120, 21, 21, 21):
        grid = np.linspace(low, high, points)
        times = clock(np.exp(grid))
        course = entropy(logits(times))
        best = int(np.argmin(course))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, points - 1)]
    end = float(entropy(0.5 * lambert(np.square(size))))
    return BlockBounce(float(np.log(size.size)), float(course[best]), end, float(times[best]))

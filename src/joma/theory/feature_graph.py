"""How features spread over a computational graph: the draft "Multi-layer Analysis" after JoMA's appendix.

Node j of the graph computes ``f_j = sigma_j(sum_k w_jk f_k)`` and receives the gradient ``g_j``. With
signals over the data as vectors (last axis: samples), the draft's Theorem 1 wants to conclude, from

    corr(z_alpha, s) > C1,   corr(z_beta, f_k) > C2,   |corr(z_alpha, z_beta)| > C3,   s = sigma'_j g_j,

that the gradient passed to child k, ``g_jk = w_jk s`` with ``w_jk = corr(f_k, s)``, correlates with the
more basic latent: ``corr(z_beta, g_jk) > C4 > 0``. For positive C's that is false
(``counterexample``). It becomes true, and sharp, with angles: for signals of length one and
``a = acos C1, b = acos C3, c = acos C2``, it holds if and only if ``a + b + c < pi/2``, and then
``C4 = cos(a + b) cos(a + b + c)`` (``guaranteed_correlation``). The draft's correlation is a plain
inner product; without normalisation its thresholds mean nothing, because scaling f_k meets any C2.

The step down to the next level (``next_level``) is false as drafted too, and has a sharp form for
ReLU: ``sin^2 a' = sin^2(a + b) + sin^2 c``. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.special import gammaln

from joma.core.arguments import arrays, check_broadcast, finite, number, numbers, positive, whole
from joma.core.errors import InputError

Array = NDArray[np.float64]
Derivative = Callable[[Array], Array]


def step(preactivation: Array) -> Array:
    """The derivative of ReLU, 0 at the kink."""
    return np.asarray(preactivation > 0, dtype=np.float64)


def correlation(first: ArrayLike, second: ArrayLike, *, normalised: bool = True) -> Array:
    """The correlation of signals (..., samples): a cosine, or the draft's inner product.

    Raises:
        InputError: signals of unequal length or not finite; a zero signal where a cosine is asked for.
    """
    x, y = numbers("correlation", "first", first), numbers("correlation", "second", second)
    if x.ndim == 0 or y.ndim == 0 or x.shape[-1] != y.shape[-1] or x.shape[-1] == 0:
        raise InputError(
            f"correlation: signals of shapes {x.shape} and {y.shape}; give the same number of samples on the "
            "last axis."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("correlation: a signal is not finite; remove the infinite or missing samples.")
    check_broadcast("correlation", first=x.shape, second=y.shape)
    inner = np.asarray((x * y).sum(axis=-1), dtype=np.float64)
    if not normalised:
        return inner
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    if np.any(lengths == 0):
        raise InputError(
            "correlation: a zero signal has no direction; leave it out or pass normalised=False."
        )
    return np.asarray(inner / lengths)


@dataclass(frozen=True)
class Signals:
    """The four signals of the draft's Theorem 1, each of shape (..., samples)."""

    label: Array
    """z_alpha, what node j should learn."""
    latent: Array
    """z_beta, the more basic concept."""
    feature: Array
    """f_k, what the child computes."""
    gradient: Array
    """s = sigma'_j g_j, what node j is asked for, past its nonlinearity."""

    def hypotheses(self, *, normalised: bool = True) -> tuple[Array, Array, Array]:
        """corr(z_alpha, s), corr(z_beta, f_k), corr(z_alpha, z_beta): to exceed C1, C2, (in size) C3."""
        return (
            correlation(self.label, self.gradient, normalised=normalised),
            correlation(self.latent, self.feature, normalised=normalised),
            correlation(self.label, self.latent, normalised=normalised),
        )

    def conclusion(self, *, normalised: bool = True) -> Array:
        """corr(z_beta, g_jk) = corr(f_k, s) corr(z_beta, s), with the draft's weight w_jk = corr(f_k, s)."""
        weight = correlation(self.feature, self.gradient, normalised=normalised)
        return np.asarray(weight * correlation(self.latent, self.gradient, normalised=normalised))


def counterexample() -> Signals:
    """Four unit signals over two samples that meet the hypotheses (.500, .766, .500) and conclude -.0868.

    In degrees: s at 60, z_alpha at 0, z_beta at -60, f_k at -20.
    """
    return Signals(label=_planar(0), latent=_planar(-60), feature=_planar(-20), gradient=_planar(60))


def violation_rate(samples: int) -> float:
    """How often the draft's conclusion fails for random directions that meet its hypotheses.

    Four independent, uniformly distributed unit signals over ``samples`` samples, given
    corr(z_alpha, s) > 0 and corr(z_beta, f_k) > 0 (|corr(z_alpha, z_beta)| > 0 is certain). The label then
    plays no part, and s falls between two directions at angle theta on opposite sides with probability
    theta / pi: the rate is ``E[theta | theta < pi/2] / pi``, the density of theta being proportional to
    ``sin^(n-2) theta``. It is 1/4 for n = 2, 1/pi for n = 3, and ``1/2 - sqrt(2 / (pi^3 n))`` for large n:
    no better than a coin.

    Raises:
        InputError: fewer than two samples, or no whole number of them.
    """
    if whole("violation_rate", "samples", samples, least=0) < 2:
        raise InputError(f"violation_rate: {samples} samples; signals need at least two to have a direction.")
    power = samples - 2
    # With u = pi/2 - theta the mass sits at u = 0 with width 1/sqrt(n).
    end = min(np.pi / 2, 15 / np.sqrt(max(power, 1)))
    moment = quad(lambda u: u * np.cos(u) ** power, 0, end, epsabs=0, epsrel=1e-12)[0]
    mass = np.sqrt(np.pi) / 2 * np.exp(gammaln((samples - 1) / 2) - gammaln(samples / 2))
    return float(0.5 - moment / mass / np.pi)


def angle_sum(label_gradient: ArrayLike, latent_feature: ArrayLike, label_latent: ArrayLike) -> Array:
    """``acos C1 + acos C2 + acos |C3|`` in radians: the draft's Theorem 1 holds if and only if < pi/2.

    Arguments C1, C2, C3 are lower bounds on cosines (C3 on a size); they broadcast.

    Raises:
        InputError: a C outside [0, 1] (C3: [-1, 1]).
    """
    a, b, c = _angles(label_gradient, latent_feature, label_latent, "angle_sum")
    return np.asarray(a + b + c)


def guaranteed_correlation(
    label_gradient: ArrayLike, latent_feature: ArrayLike, label_latent: ArrayLike
) -> Array:
    """The least corr(z_beta, g_jk) that unit signals with corr >= C1, C2 and |corr| >= C3 can have.

    With ``a + b + c < pi/2`` it is ``C4 = cos(a + b) cos(a + b + c) > 0``, whatever the sign of
    corr(z_alpha, z_beta). Otherwise it is 0 or less, so that no positive C4 exists: the same expression as
    long as ``2 (a + b) + c <= pi``, and ``-sin^2(c / 2)`` beyond. Attained by ``extremal_signals``.

    Raises:
        InputError: a C outside [0, 1] (C3: [-1, 1]).
    """
    a, b, c = _angles(label_gradient, latent_feature, label_latent, "guaranteed_correlation")
    # z_beta lies within a + b of s, and f_k within c of z_beta; cos(t) cos(t + c) falls until 2 t + c = pi.
    least = np.where(2 * (a + b) + c >= np.pi, -(np.sin(c / 2) ** 2), np.cos(a + b) * np.cos(a + b + c))
    return np.asarray(least)


def extremal_signals(label_gradient: float, latent_feature: float, label_latent: float) -> Signals:
    """Planar unit signals, correlated by at least C1, C2, |C3|, that attain ``guaranteed_correlation``.

    With a negative C3 the latent and the feature are turned round, which changes nothing.
    """
    where = "extremal_signals"
    label_gradient = number(where, "label_gradient", label_gradient)
    latent_feature = number(where, "latent_feature", latent_feature)
    label_latent = number(where, "label_latent", label_latent)
    a, b, c = (float(x) for x in _angles(label_gradient, latent_feature, label_latent, where))
    turn = min(a + b, (np.pi - c) / 2)
    first = min(a, turn)
    sign = -1.0 if label_latent < 0 else 1.0
    degrees = 180 / np.pi
    return Signals(
        gradient=_planar(0),
        label=_planar(first * degrees),
        latent=sign * _planar(turn * degrees),
        feature=sign * _planar((turn + c) * degrees),
    )


def guaranteed_without_label(latent_gradient: ArrayLike, latent_feature: ArrayLike) -> Array:
    """The weaker requirement, without z_alpha: the least corr(z_beta, g_jk) given |corr(z_beta, s)| and C2.

    With ``C = |corr(z_beta, s)|``, itself and not a bound, and ``t = acos C`` it is ``cos(t) cos(t + c)``:
    positive if and only if ``C > sqrt(1 - C2^2)``.

    Raises:
        InputError: C outside [-1, 1] or C2 outside [0, 1].
    """
    where = "guaranteed_without_label"
    turn = np.arccos(np.abs(_cosines(latent_gradient, "latent_gradient", where, lowest=-1)))
    c = np.arccos(_cosines(latent_feature, "latent_feature", where, lowest=0))
    check_broadcast(where, latent_gradient=turn.shape, latent_feature=c.shape)
    return np.asarray(np.cos(turn) * np.cos(turn + c))


def weight_flow(
    feature: ArrayLike, gradient: ArrayLike, *, times: ArrayLike, start: float = 0.0, rate: float = 1.0
) -> Array:
    """``w_jk(t) = w_jk(0) + rate t corr(f_k, s)`` under stationary signals; shape of ``times``.

    The draft sets w_jk = corr(f_k, s), which is the *first step* of gradient ascent from w_jk = 0. At
    w_jk = 0 itself nothing is passed back, g_jk = 0; a small start of the wrong sign passes the wrong sign
    back until ``onset``. ``feature`` and ``gradient`` have shape (samples,).

    Raises:
        InputError: signals that do not match, times that are negative, a rate that is not positive, or
            anything that is not finite.
    """
    drift, begin = _drift(feature, gradient, "weight_flow"), number("weight_flow", "start", start)
    moments, speed = finite("weight_flow", "times", times), positive("weight_flow", "rate", rate)
    if (moments < 0).any():
        raise InputError(f"weight_flow: a time is {moments.min():g}; give times of 0 or more.")
    return np.asarray(begin + speed * drift * moments)


def onset(feature: ArrayLike, gradient: ArrayLike, *, start: float, rate: float = 1.0) -> float:
    """The time from which w_jk(t) has the sign of corr(f_k, s): 0 where it starts with it.

    Raises:
        InputError: corr(f_k, s) = 0 (the weight never moves), a rate that is not positive, or anything that
            is not finite.
    """
    drift, start = _drift(feature, gradient, "onset"), number("onset", "start", start)
    rate = number("onset", "rate", rate)
    if drift == 0 or not rate > 0:
        raise InputError(
            f"onset: corr(f_k, s) = {drift:g} and rate = {rate:g}; the weight moves only if neither is "
            "zero, and the rate must be positive."
        )
    return max(0.0, -start / (rate * drift))


def gated_correlation_bound(latent_gradient: ArrayLike, latent_feature: ArrayLike) -> Array:
    """The least cosine of (z_beta, sigma'_k g_k) given those of (z_beta, g_k) and (z_beta, f_k), for ReLU.

    The draft: "we should be able to get that corr(z_beta, sigma'_k g_k) is also large". Not from large
    correlations alone: the gate can remove just the samples that agreed. But ReLU's f_k vanishes where its
    gate is closed, so z_beta is small there, and **cos >= sqrt(C^2 + C2^2 - 1)** if C^2 + C2^2 > 1
    (sharp); where it is not, nothing is guaranteed and the result is 0.

    Raises:
        InputError: a cosine outside [0, 1].
    """
    where = "gated_correlation_bound"
    passed = _cosines(latent_gradient, "latent_gradient", where, lowest=0)
    feature = _cosines(latent_feature, "latent_feature", where, lowest=0)
    check_broadcast(where, latent_gradient=passed.shape, latent_feature=feature.shape)
    return np.sqrt(np.maximum(passed**2 + feature**2 - 1, 0))


def next_level(label_gradient: ArrayLike, latent_feature: ArrayLike, label_latent: ArrayLike) -> Array:
    """The C1 that the child may count on in its turn, one level further down (ReLU, normalised signals).

    ``sin^2 a' = sin^2(a + b) + sin^2 c``: ``gated_correlation_bound`` with
    corr(z_beta, g_k) = cos(a + b), which is what one parent, or any sum of parents that each satisfy it,
    passes on. 0 where ``a + b + c >= pi/2``: there the recursion breaks.

    Raises:
        InputError: a C outside [0, 1] (C3: [-1, 1]).
    """
    a, b, c = _angles(label_gradient, latent_feature, label_latent, "next_level")
    holds = a + b + c < np.pi / 2
    passed = np.where(holds, np.cos(np.minimum(a + b, np.pi / 2)), 0)
    return np.where(holds, gated_correlation_bound(np.clip(passed, 0, 1), np.cos(c)), 0.0)


def recursion_depth(
    label_gradient: float, latent_feature: float, label_latent: float, *, most: int = 1000
) -> int:
    """How many levels the theorem reaches with the same C2 and C3 at each, at most ``most``.

    Zero where even the first level fails; ``most`` where nothing is lost (C2 = |C3| = 1).

    Raises:
        InputError: a C outside [0, 1] (C3: [-1, 1]), or a ``most`` that is no whole number of 0 or more.
    """
    where = "recursion_depth"
    most = whole(where, "most", most, least=0)
    level, c1 = 0, number(where, "label_gradient", label_gradient)
    latent_feature = number(where, "latent_feature", latent_feature)
    label_latent = number(where, "label_latent", label_latent)
    _angles(c1, latent_feature, label_latent, where)
    while level < most and float(angle_sum(c1, latent_feature, label_latent)) < np.pi / 2:
        c1 = float(next_level(c1, latent_feature, label_latent))
        level += 1
    return level


def weight_gradient(
    weights: ArrayLike, inputs: ArrayLike, gradients: ArrayLike, *, derivative: Derivative = step
) -> Array:
    """``w_j' = E[sigma'(w . x) g x]``, exactly; weights (d,), inputs (samples, d), gradients (samples,).

    Raises:
        InputError: shapes that do not match, or values that are not finite.
    """
    w, x, g = _batch(weights, inputs, gradients, "weight_gradient")
    return np.asarray((derivative(x @ w) * g) @ x / len(x))


def two_valued_weight_gradient(
    weights: ArrayLike,
    inputs: ArrayLike,
    gradients: ArrayLike,
    latent: ArrayLike,
    *,
    derivative: Derivative = step,
    ideal: bool = False,
) -> Array:
    """The draft's Eq. 2 (``ideal``: Eq. 3), with the two class means in the place of x_+ and x_-.

    Eq. 2 is exact if x takes just two values, x_+ with latent (samples,) = 1 and x_- with 0; otherwise the
    gate and the gradient vary within a class, and the means do not carry that. Eq. 3 further puts
    E[g | 1] = 1 and E[g | 0] = -1.

    Raises:
        InputError: a latent that is not 0 or 1 or that takes one value only; shapes that do not match.
    """
    where = "two_valued_weight_gradient"
    w, x, g = _batch(weights, inputs, gradients, where)
    z = np.asarray(latent)
    if z.shape != g.shape or not np.isin(z, (0, 1)).all() or not 0 < z.mean() < 1:
        raise InputError(
            f"{where}: the latent of shape {z.shape} must hold a 0 or a 1 for each of the {g.size} samples, "
            "and both must occur."
        )
    total = np.zeros_like(w)
    for value, target in ((1, 1.0), (0, -1.0)):
        chosen = z == value
        mean = x[chosen].mean(axis=0)
        asked = target if ideal else g[chosen].mean()
        total += derivative(np.asarray(w @ mean)) * asked * chosen.mean() * mean
    return total


def _planar(degrees: float) -> Array:
    return np.array([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))])


def _cosines(values: ArrayLike, name: str, where: str, *, lowest: float) -> Array:
    array = numbers(where, name, values)
    if not np.all((array >= lowest) & (array <= 1)):
        raise InputError(f"{where}: {name} = {values!r} is outside [{lowest:g}, 1]; give cosines.")
    return array


def _angles(
    label_gradient: ArrayLike, latent_feature: ArrayLike, label_latent: ArrayLike, where: str
) -> tuple[Array, Array, Array]:
    """a = acos C1, b = acos |C3|, c = acos C2."""
    a = np.arccos(_cosines(label_gradient, "label_gradient", where, lowest=0))
    b = np.arccos(np.abs(_cosines(label_latent, "label_latent", where, lowest=-1)))
    c = np.arccos(_cosines(latent_feature, "latent_feature", where, lowest=0))
    check_broadcast(where, label_gradient=a.shape, latent_feature=c.shape, label_latent=b.shape)
    return a, b, c


def _drift(feature: ArrayLike, gradient: ArrayLike, where: str) -> float:
    f, s = arrays(where, feature=(feature, "samples"), gradient=(gradient, "samples"))
    return float(correlation(f, s, normalised=False))


def _batch(
    weights: ArrayLike, inputs: ArrayLike, gradients: ArrayLike, where: str
) -> tuple[Array, Array, Array]:
    w, x, g = arrays(
        where, weights=(weights, "d"), inputs=(inputs, "samples d"), gradients=(gradients, "samples")
    )
    return w, x, g

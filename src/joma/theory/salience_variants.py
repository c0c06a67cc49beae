"""Eq. 6 with linear and with softmax attention instead of exp: what Theorem 4's remark leaves out.

Linear attention multiplies ``mu - v`` by the logit itself, and the invariant of Theorem 1 makes that
z = sqrt(v^2 + c) with c = z(0)^2 - v(0)^2:

    v' = (mu - v) sqrt(v^2 + c),    S := sqrt(mu^2 + c).

It needs z(0) > 0: at z(0) = v(0) = 0 nothing moves, and z(0) < 0 drives v away from mu. For unequal
learning rates z^2 = (eta_z/eta_w) v^2 + c: divide c by eta_z/eta_w =: k and run the clock sqrt(k) times
as fast.

Softmax attention multiplies by exp(v^2/2 - bbar |v|^2/2)/A. Whatever is common to all components only
changes the clock, so uniform bbar leaves F(r_j, mu_j) equal for all j and Theorem 4 as it is. All this
takes bbar as constant, as Theorem 1 does; where it follows the attention the ratio comes out far smaller
(``joma.dynamics.salience_flow.integrate_following_softmax``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.arguments import broadcast, numbers, positive, spread, within_floats
from joma.core.errors import InputError
from joma.theory.salience import Course

Array = NDArray[np.float64]

_SIZES = "bring mu, c and the times to sizes around one"


def linear_attention_time(v: ArrayLike, mu: ArrayLike, c: ArrayLike, *, v0: ArrayLike = 0.0) -> Array:
    """Time to reach ``v`` from ``v0`` under linear attention, 0 <= v0 <= v < mu; broadcasts.

    t = (1/S) [ln K(v) - ln K(v0)],  K(v) = (c + mu v + S sqrt(v^2 + c)) / (mu - v).
    """
    at, m, offset, start = broadcast("linear_attention_time", v=v, mu=mu, c=c, v0=v0)
    _check(m, offset, start)
    if np.any((at < start) | (at >= m)):
        raise InputError(
            "linear_attention_time: v must lie in [v0, mu); it rises from v0 and never reaches mu."
        )
    with np.errstate(all="ignore"):
        final_rate = np.sqrt(m * m + offset)
        gain = np.log(_progress(at, m, offset) / _progress(start, m, offset))
        time = (gain + np.log((m - start) / (m - at))) / final_rate
    return within_floats("linear_attention_time", time, _SIZES)


def solve_linear_attention(mu: ArrayLike, times: ArrayLike, *, c: ArrayLike, v0: ArrayLike = 0.0) -> Course:
    """Linear attention solved in closed form for all components and times.

    With K(t) = K(v0) exp(S t) (see ``linear_attention_time``), S sqrt(v^2 + c) = A - B v for
    A = K mu - c, B = K + mu, a quadratic equation whose solution here is written without
    cancellation and divided by K, so that it holds at all times.

    Args:
        mu: (m,), positive.
        times: (n,), non-negative.
        c: z(0)^2 - v(0)^2, (m,) or one for all, with v0^2 + c > 0.
        v0: (m,) or one for all, in [0, mu).
    """
    where = "solve_linear_attention"
    m, t = np.atleast_1d(numbers(where, "mu", mu)), np.atleast_1d(numbers(where, "times", times))
    if m.ndim != 1:
        raise InputError(f"{where}: mu has shape {m.shape}; give a vector of positive numbers.")
    offset, start = spread(where, "c", c, m.shape), spread(where, "v0", v0, m.shape)
    _check(m, offset, start)
    if t.ndim != 1 or not np.all(np.isfinite(t)) or np.any(t < 0):
        raise InputError("solve_linear_attention: times must be a vector of finite, non-negative numbers.")
    with np.errstate(all="ignore"):
        rate = np.sqrt(m * m + offset)
        log_k = rate * t[:, None] + np.log(_progress(start, m, offset) / (m - start))
        inverse = np.exp(-log_k)
        a, b, s = m - offset * inverse, 1.0 + m * inverse, rate * inverse
        root = np.sqrt(np.maximum(a * a + offset * (b * b - s * s), 0.0))
        v = np.clip((a * a - s * s * offset) / (a * b + s * root), start, m)
        log_inverse_delta = np.log(m) + log_k - np.log(_progress(v, m, offset))
    return Course(m, t, within_floats(where, log_inverse_delta, _SIZES), np.ones_like(m))


def linear_attention_ratio(mu_j: ArrayLike, mu_k: ArrayLike, c_j: ArrayLike, c_k: ArrayLike) -> Array:
    """The limit of (ln 1/delta_j)/(ln 1/delta_k) under linear attention: S_j/S_k.

    ln 1/delta = S t - ln[2 S^2 / (sqrt c (sqrt c + S))] + o(1) from v(0) = 0; mu_j/mu_k for c -> 0.
    Salience still decides, but as a ratio of mu rather than of exp(mu^2/2).
    """
    where = "linear_attention_ratio"
    j, k, cj, ck = broadcast(where, mu_j=mu_j, mu_k=mu_k, c_j=c_j, c_k=c_k)
    with np.errstate(all="ignore"):
        rate_j, rate_k = j * j + cj, k * k + ck
        if np.any((rate_j <= 0) | (rate_k <= 0)):
            raise InputError(f"{where}: S^2 = mu^2 + c must be positive for both; give larger c or mu.")
        return within_floats(where, np.sqrt(rate_j / rate_k), _SIZES)


def linear_attention_offset(mu: ArrayLike, c: ArrayLike) -> Array:
    """lim S t - ln 1/delta under linear attention from v(0) = 0, for c > 0."""
    where = "linear_attention_offset"
    m, offset = broadcast(where, mu=mu, c=c)
    if np.any(offset <= 0):
        raise InputError(f"{where}: c must be positive; from v(0) = 0 nothing moves without.")
    with np.errstate(all="ignore"):
        s, root = np.sqrt(m * m + offset), np.sqrt(offset)
        return within_floats(where, np.log(2 * s * s / (root * (root + s))), _SIZES)


def softmax_attention_ratio(
    mu_j: ArrayLike,
    mu_k: ArrayLike,
    *,
    bbar_j: ArrayLike = 0.0,
    bbar_k: ArrayLike = 0.0,
    squared_norm: ArrayLike = 0.0,
    kappa: float = 1.0,
) -> Array:
    """The limit of (ln 1/delta_j)/(ln 1/delta_k) under softmax attention with a constant bbar.

    exp(kappa [(mu_j^2 - mu_k^2)/2 - (bbar_j - bbar_k) |mu|^2/2]), |mu|^2 = ``squared_norm`` over
    *all* components. For equal bbar it is Theorem 4's. A token that is attended to more on average
    (larger bbar) is thus held back, and may even converge after a less salient one.
    """
    where = "softmax_attention_ratio"
    kappa = positive(where, "kappa", kappa)
    j, k, bj, bk, norm = broadcast(
        where, mu_j=mu_j, mu_k=mu_k, bbar_j=bbar_j, bbar_k=bbar_k, squared_norm=squared_norm
    )
    if np.any((norm < 0) | (bj < 0) | (bj > 1) | (bk < 0) | (bk > 1)):
        raise InputError(f"{where}: squared_norm must not be negative and bbar lie in [0, 1].")
    with np.errstate(all="ignore"):
        ratio = np.exp(0.5 * kappa * ((j - k) * (j + k) - (bj - bk) * norm))
    return within_floats(where, ratio, "bring the components closer together")


def _progress(v: Array, mu: Array, c: Array) -> Array:
    """(mu - v) K(v)."""
    return np.asarray(c + mu * v + np.sqrt((mu * mu + c) * (v * v + c)))


def _check(mu: Array, c: Array, v0: Array) -> None:
    if not np.all(np.isfinite(mu) & (mu > 0)):
        raise InputError("linear attention: mu must be positive and finite (mirror a negative component).")
    if np.any((v0 < 0) | (v0 >= mu)):
        raise InputError("linear attention: v0 must lie in [0, mu).")
    if np.any(~(v0 * v0 + c > 0)):
        raise InputError(
            "linear attention: z(0)^2 = v0^2 + c must be positive; at z(0) = 0 nothing moves "
            "(give c > 0 or v0 > 0)."
        )

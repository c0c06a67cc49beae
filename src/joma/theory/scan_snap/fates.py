"""Scan&Snap Theorems 2 and 3: which contextual tokens attention drops, which it keeps, and how fast.

Put Theorem 1's gradient g_n = sum of positive own_n f_n minus cross_nn' f_n' into the attention dynamics:

    f_n * (P_perp g_n) = sum_n' cross_nn' f_n * ( (f_n . f_n') f_n - f_n' ).

A distinct token has f_n'(l) = 0, so z_ml' = eta_Z xi_n f_nl^2 with xi_n = P(n) sum_n' cross_nn' f_n . f_n':
it rises (Theorem 2a). A single common token has f_n . f_n' = f_n(l) f_n'(l), so every term is
-cross f_n f_n' (1 - f_n^2): it falls (2b). With two common tokens a term can have either sign, and one of
the two may rise: the hypothesis |G_CT| = 1 is needed (``pull_of_form`` shows it).

Theorem 3 follows for the unnormalised c~_nl = P(l|n) exp(z_ml): with dB_n = eta_Z xi_n dt and
S = sum_l c~_nl^2, d(1/c~_nl^2)/dB = -2/S for every distinct token l of n. Hence, sharper than the slides:
1/c~_nl^2 - 1/c~_nl'^2 is conserved, and one clock q_n moves all of them (``distinct_clock``),

    z_ml(t) = z_ml(0) - 1/2 ln(1 - c~_nl(0)^2 q_n(t)).

The strongest token would diverge as q_n -> 1/c~_nl0(0)^2; the others tend to finite limits
(``losers_limit``), the counterpart of JoMA's Theorem 2. All this is exact while g_n stays in the span
of the f_n; along the coupled flow it holds the better, the larger eta_Y/eta_Z.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.arguments import arrays, finite, numbers
from joma.core.errors import InputError

Floats = NDArray[np.float64]


def pull_of_form(features: ArrayLike, cross: ArrayLike) -> Floats:
    """What Theorem 1's gradient asks of each class's attention logits, shape (..., K, C).

    ``features`` f (..., K, C) of norm one, ``cross`` gamma beta_nn' (..., K, K); its diagonal and the
    coefficient of f_n itself drop out under P_perp. Sum over the classes of one last token, weighted by
    P(n) eta_Z, for z_m'.
    """
    f, weight = finite("pull_of_form", "features", features), numbers("pull_of_form", "cross", cross).copy()
    if f.ndim < 2 or weight.shape[-2:] != (f.shape[-2], f.shape[-2]):
        raise InputError(
            f"pull_of_form: cross has shape {weight.shape} for features of shape {f.shape}; it needs one row "
            "and one column for each."
        )
    arrays("pull_of_form", features=(f, "... K C"), cross=(weight, "... K K"))
    own = np.arange(f.shape[-2])
    weight[..., own, own] = 0.0
    along = (weight * (f @ f.swapaxes(-1, -2))).sum(axis=-1, keepdims=True)
    return np.asarray(f * (along * f - weight @ f))


def relative_gain(mass: ArrayLike, other: ArrayLike) -> Floats:
    """Theorem 3's r_{l/l'|n} = (c_l/c_l')^2 - 1 of a token's attention mass over another's.

    c and the unnormalised c~ give the same. Raises InputError where the other token has no mass.
    """
    mass, other = arrays("relative_gain", mass=(mass, "..."), other=(other, "..."))
    if not (other > 0).all():
        raise InputError(
            "relative_gain: the token compared with has no mass; compare tokens with P(l|n) > 0."
        )
    return np.asarray((mass / other) ** 2 - 1)


def gain_factor(logit: ArrayLike, start: ArrayLike = 0.0) -> Floats:
    """Theorem 3's chi_l = exp(2 (z_l(t) - z_l(0))): r_{l/l'}(t) = r_{l/l'}(0) chi_l(t)."""
    z, z0 = arrays("gain_factor", logit=(logit, "..."), start=(start, "..."))
    return np.asarray(np.exp(2 * (z - z0)))


def gain_bounds(feature_start: ArrayLike, gain: ArrayLike) -> tuple[Floats, Floats]:
    """Theorem 3's e^{2 f_nl0(0)^2 B_n} <= chi_l0 <= e^{2 B_n} for the strongest token l0.

    From dz_l0 = f_nl0^2 dB_n; the lower bound needs f_nl0 not to fall below its start, which holds where
    the common tokens are falling.
    """
    f, b = arrays("gain_bounds", feature_start=(feature_start, "..."), gain=(gain, "..."))
    return np.exp(2 * f**2 * b), np.exp(2 * b)


def distinct_clock(logit: ArrayLike, start_mass: ArrayLike, start: ArrayLike = 0.0) -> Floats:
    """q_n = (1 - e^{-2 (z_l - z_l(0))}) / c~_nl(0)^2: the same for every distinct token l of n.

    ``start_mass`` is c~_nl(0) = P(l|n) exp(z_ml(0)). Equivalent to Theorem 3, and independent of which
    pair of tokens is compared.
    """
    z, mass, z0 = arrays(
        "distinct_clock", logit=(logit, "..."), start_mass=(start_mass, "..."), start=(start, "...")
    )
    if not (mass > 0).all():
        raise InputError(f"distinct_clock: a start mass is {mass.min():g}; give tokens with mass above 0.")
    return np.asarray(-np.expm1(-2 * (z - z0)) / mass**2)


def losers_limit(start_mass: ArrayLike, strongest: ArrayLike) -> Floats:
    """Where z_l - z_l(0) ends if the strongest distinct token wins: -1/2 ln(1 - (c~_l(0)/c~_l0(0))^2).

    inf for a token as strong as the strongest: ties diverge together.
    """
    mass, top = arrays("losers_limit", start_mass=(start_mass, "..."), strongest=(strongest, "..."))
    if not (top > 0).all():
        raise InputError(f"losers_limit: the strongest token has mass {top.min():g}; it must be above 0.")
    ratio = mass / top
    if (ratio > 1).any() or (ratio < 0).any():
        raise InputError(
            f"losers_limit: a ratio of {ratio.max():g} to the strongest token; the strongest has the largest "
            "start mass, so ratios lie in [0, 1]."
        )
    with np.errstate(divide="ignore"):  # a tie has no finite limit
        return np.asarray(-0.5 * np.log1p(-(ratio**2)))

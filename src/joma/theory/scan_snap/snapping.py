"""Scan&Snap Theorem 4: attention scans, then snaps and freezes.

B_n(t) = eta_Z int xi_n is the gain that Theorem 3's bounds are made of. The theorem rests on a hypothesis,
that a common token falls as fast as the gain rises and that the drive fades with its fourth power,

    z_CT' = -C0^{-1} eta_Z gamma e^{4 z_CT},     xi_n = C0^{-1} gamma e^{4 z_CT},     gamma = h (1 - alpha),

with the decoder's logit h. It then integrates, because gamma = K h h'/eta_Y, to

    B(t) = 1/4 ln(1 + (2 K eta_Z/(C0 eta_Y)) h(t)^2)
         ~ 1/4 [ ln(C0 + 2 K (eta_Z/eta_Y) ln^2(M eta_Y t/K)) - ln C0 ]      (M large).

The slides print ln(C0 + ...) alone: the factor 1/4 and the constant are missing, and B(0) = ln C0 is not 0.

Is the hypothesis true? For one common token and classes that are alike, the overlap f_n . f_n' = f_CT^2
that xi is proportional to obeys exactly (``overlap_exponent``)

    d ln f_CT^2 / dB = -2 [ kappa (1 - f_CT^2)^2 + sum_l f_l^4 ],

kappa the number of next tokens that share the last token. This is -4 in one corner only: kappa = 1, the
common token gone, one distinct token left. Elsewhere the exponent is a function of the state, and gamma's
share moves as well; ``fitted_exponent`` reads the whole exponent off a simulation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.arguments import arrays, finite, numbers, positive, whole
from joma.core.errors import InputError
from joma.theory.scan_snap.decoder import decoder_logit, decoder_logit_late

Floats = NDArray[np.float64]

HYPOTHESISED_EXPONENT = -4.0
"""d ln(xi/gamma)/dB under Theorem 4's hypothesis xi ~ gamma e^{4 z_CT}, z_CT = -B."""


def gain(
    time: ArrayLike, *, eta_y: float, eta_z: float, classes: int, outputs: int, constant: float
) -> Floats:
    """B(t) = 1/4 ln(1 + (2 K eta_Z/(C0 eta_Y)) h(t)^2), exact under the hypothesis.

    ``classes`` K, ``outputs`` M, ``constant`` C0 > 0. Raises InputError for values out of range.
    """
    factor = _factor(eta_y, eta_z, classes, constant)
    h = decoder_logit(time, eta_y=eta_y, classes=classes, outputs=outputs)
    return np.asarray(np.log1p(factor * h**2) / 4)


def gain_late(
    time: ArrayLike, *, eta_y: float, eta_z: float, classes: int, outputs: int, constant: float
) -> Floats:
    """The late form, growth of ln ln t: B with h replaced by (M-1)/M ln(M eta_Y t/K).

    The factor (M-1)/M is part of it: without it B would end 1/(2M) too high.
    """
    factor = _factor(eta_y, eta_z, classes, constant)
    late = decoder_logit_late(time, eta_y=eta_y, classes=classes, outputs=outputs)
    return np.asarray(np.log1p(factor * late**2) / 4)


def gain_printed(
    time: ArrayLike, *, eta_y: float, eta_z: float, classes: int, outputs: int, constant: float
) -> Floats:
    """The slides' ln(C0 + 2K (eta_Z/eta_Y) ln^2(M eta_Y t/K)): kept as an erratum."""
    factor = _factor(eta_y, eta_z, classes, constant)
    late = decoder_logit_late(time, eta_y=eta_y, classes=classes, outputs=outputs)
    return np.asarray(np.log(constant * (1 + factor * (late * outputs / (outputs - 1)) ** 2)))


def scanning_gain(time: ArrayLike, *, eta_y: float, eta_z: float, classes: int, constant: float) -> Floats:
    """The early form 1/4 ln(1 + 2 eta_Y eta_Z t^2/(K C0)), from h ~ eta_Y t/K: it grows as t^2.

    It rises in both rates. Once h has turned logarithmic (see
    ``joma.theory.scan_snap.decoder.half_speed_time``), B falls in eta_Y at fixed eta_Z.
    """
    factor, t = _factor(eta_y, eta_z, classes, constant), finite("scanning_gain", "time", time)
    if (t < 0).any():
        raise InputError(f"scanning_gain: a time is {t.min():g}; give times of 0 or more.")
    h = eta_y * t / classes
    return np.asarray(np.log1p(factor * h**2) / 4)


def snap_time_printed(*, eta_y: float, classes: int, outputs: int) -> float:
    """The slides' t_0 = 2 K ln M / eta_Y, an order of magnitude; the decoder's half-speed time is exact."""
    where = "snap_time_printed"
    positive(where, "eta_y", eta_y)
    whole(where, "classes", classes, least=1)
    whole(where, "outputs", outputs, least=1)
    return float(2 * classes * np.log(outputs) / eta_y)


def overlap_exponent(common: ArrayLike, distinct: ArrayLike, sharing: int) -> Floats:
    """d ln(f_n . f_n')/dB_n = -2 [kappa (1 - f_CT^2)^2 + sum_l f_l^4] for classes that are alike.

    ``common`` is f_CT, shape (...); ``distinct`` f_l over the distinct tokens of n, shape (..., D);
    ``sharing`` kappa, the next tokens that share n's last token. Uses dz_l = f_l^2 dB (distinct) and
    dz_CT = -kappa (1 - f_CT^2) dB (the one common token), exact where Theorem 1's form is.
    """
    if whole("overlap_exponent", "sharing", sharing, least=0) < 1:
        raise InputError(f"overlap_exponent: sharing = {sharing}; at least the next token itself counts.")
    common, distinct = arrays("overlap_exponent", common=(common, "..."), distinct=(distinct, "... D"))
    return np.asarray(-2 * (sharing * (1 - common**2) ** 2 + (distinct**4).sum(axis=-1)))


def fitted_exponent(strength: ArrayLike, gain: ArrayLike) -> float:
    """The least-squares slope of ln(strength) on B over a stretch of a trajectory.

    With strength = xi/gamma this is what the hypothesis says to be -4; with strength = f_n . f_n' it is
    what ``overlap_exponent`` predicts. Raises InputError where there is nothing to fit.
    """
    x, y = numbers("fitted_exponent", "gain", gain), numbers("fitted_exponent", "strength", strength)
    if x.shape != y.shape or x.ndim != 1 or x.size < 2 or not (y > 0).all() or np.ptp(x) == 0:
        raise InputError(
            "fitted_exponent: needs at least two points of positive strength along a gain that moves; choose "
            "a longer stretch, after the start (where xi is still zero)."
        )
    arrays("fitted_exponent", gain=(x, "points"), strength=(y, "points"))
    return float(np.polyfit(x, np.log(y), 1)[0])


def _factor(eta_y: float, eta_z: float, classes: int, constant: float) -> float:
    """2 K eta_Z/(C0 eta_Y), after checking what it is made of."""
    given = {"eta_y": eta_y, "eta_z": eta_z, "classes": classes, "constant": constant}
    for name, value in given.items():
        if not np.isfinite(numbers("Theorem 4", name, value)).all():
            raise InputError(f"Theorem 4: {name} = {value!r} is not finite; give a finite number.")
    if not (eta_y > 0 and eta_z >= 0 and constant > 0 and classes >= 1):
        raise InputError(
            f"Theorem 4: eta_y = {eta_y}, eta_z = {eta_z}, K = {classes}, C0 = {constant}; eta_y, K and C0 "
            "must be positive and eta_z at least 0."
        )
    return 2 * classes * eta_z / (constant * eta_y)

"""Scan&Snap Theorem 1: the decoder Y with attention held still.

With frozen, orthonormal f_n and K equally likely next tokens out of M logits, Y(t) = sum_n f_n a_n(t)^T
and the logit h of the right token over its zero start obeys

    h' = (eta_Y/K) (1 - alpha),   alpha = e^h / (e^h + (M-1) e^{-h/(M-1)}),

which integrates to

    h + (e^{M h/(M-1)} - 1)/M = eta_Y t / K,      late: h ~ (M-1)/M ln(M eta_Y t / K).

Theorem 1 says of the gradient that reaches attention: g_n = Y (e_n - alpha_n) =
gamma (iota_n f_n - sum_{n' != n} beta_nn' f_n') with positive coefficients. For frozen features from
Y(0) = 0 the span is exact, orthonormal or not, because each update of Y is some f_n times a row; while
attention moves it holds up to what f_n has turned away from its past, a residual that
``gradient_form`` measures. The theorem's regime of steps is tried by ``joma check snap_theorem1``;
its constants are not reproduced here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import wrightomega

from joma.core.arguments import arrays, finite, numbers, positive, whole
from joma.core.errors import InputError

Floats = NDArray[np.float64]


def decoder_logit(time: ArrayLike, *, eta_y: float, classes: int, outputs: int) -> Floats:
    """h(t): the right token's logit, from h + (e^{Mh/(M-1)} - 1)/M = eta_Y t/K; shape of ``time``.

    ``classes`` is K, ``outputs`` M. Explicit by Wright's omega, then refined to rounding. Raises
    InputError for negative times, for a rate that is not positive, and for M < 2 or M < K.
    """
    tau = _own_time(time, eta_y, classes, outputs)
    scale = outputs / (outputs - 1)
    # u = scale h solves u/scale + e^u/M = tau + 1/M, so u = s - omega(s + ln(scale/M)).
    s = scale * (tau + 1 / outputs)
    h = (s - np.real(wrightomega(s + np.log(scale / outputs)))) / scale
    for _ in range(4):  # s - omega cancels for small and large times; Newton's step does not
        error = h + np.expm1(scale * h) / outputs - tau
        h = h - error / (1 + np.exp(scale * h) / (outputs - 1))
    return np.asarray(h)


def decoder_logit_late(time: ArrayLike, *, eta_y: float, classes: int, outputs: int) -> Floats:
    """The late form h ~ (M-1)/M ln(M eta_Y t/K), right up to O(1/t) and the slowly varying h itself."""
    tau = _own_time(time, eta_y, classes, outputs)
    if (tau <= 0).any():
        raise InputError("decoder_logit_late: the late form needs times above 0.")
    return np.asarray((outputs - 1) / outputs * np.log(outputs * tau))


def right_probability(logit: ArrayLike, outputs: int) -> Floats:
    """alpha: the probability of the right token whose logit has grown to h (the others to -h/(M-1)).

    Raises InputError for logits that are not finite and for M < 2.
    """
    logit = finite("right_probability", "logit", logit)
    whole("right_probability", "outputs", outputs, least=2)
    return np.asarray(1 / (1 + (outputs - 1) * np.exp(-outputs / (outputs - 1) * logit)))


def half_speed_time(*, eta_y: float, classes: int, outputs: int) -> float:
    """When h' has fallen to half its start: (K/eta_Y) [ (M-1)/M ln(M+1) + 1 ], exactly.

    h' is proportional to 1 - alpha, which starts at (M-1)/M and is half of that when e^{Mh/(M-1)} = M + 1.
    For large M this is K (ln M + 1)/eta_Y, the end of scanning: the slides' t_0 = O(2 K ln M/eta_Y).
    """
    _own_time(0.0, eta_y, classes, outputs)
    return float(classes / eta_y * ((outputs - 1) / outputs * np.log(outputs + 1) + 1))


def steps_until_all_drawn(classes: int, probability: float) -> float:
    """By how many steps of batch size 1 all of K equally likely classes have been drawn, this probably.

    K (ln K - ln ln 1/p), the coupon-collector's limit law; K (ln K + 3) for p = 0.95. It is then that the
    coefficients of Theorem 1 are positive, not after the K^2 steps that the paper asks for: until a class has
    been drawn no update of Y has its features, so that its gamma iota_n is at most 0.
    """
    count = whole("steps_until_all_drawn", "classes", classes, least=1)
    if not 0 < positive("steps_until_all_drawn", "probability", probability) < 1:
        raise InputError(f"steps_until_all_drawn: probability = {probability:g} must lie between 0 and 1.")
    return float(count * (np.log(count) - np.log(-np.log(probability))))


@dataclass(frozen=True)
class GradientForm:
    """Theorem 1's coefficients, fitted: g_n ~ own_n f_n - sum_{n'} cross_nn' f_n'."""

    own: Floats
    """gamma iota_n, shape (K,)."""
    cross: Floats
    """gamma beta_nn', shape (K, K), zero on the diagonal."""
    residual: Floats
    """|g_n - fit| / |g_n|, shape (K,): how far g_n is from the span of the f_n'; 0 where g_n = 0."""


def gradient_form(features: Floats, backpropagated: Floats) -> GradientForm:
    """Theorem 1's coefficients of g (K, C) on the features f (K, C), by least squares.

    Where the features are linearly dependent the coefficients are those of least norm. Raises InputError
    for shapes that differ and for values that are not finite.
    """
    features = numbers("gradient_form", "features", features)
    backpropagated = numbers("gradient_form", "backpropagated", backpropagated)
    if features.shape != backpropagated.shape or features.ndim != 2:
        raise InputError(
            f"gradient_form: features {features.shape} and gradients {backpropagated.shape} must have one "
            "shape, (next tokens, contextual tokens)."
        )
    arrays("gradient_form", features=(features, "K C"), backpropagated=(backpropagated, "K C"))
    coefficients = np.linalg.lstsq(features.T, backpropagated.T, rcond=None)[0].T
    norms = np.linalg.norm(backpropagated, axis=1)
    misses = np.linalg.norm(backpropagated - coefficients @ features, axis=1)
    own = np.diag(coefficients).copy()
    residual = np.divide(misses, norms, out=np.zeros_like(norms), where=norms > 0)
    return GradientForm(own, np.diag(own) - coefficients, residual)


def _own_time(time: ArrayLike, eta_y: float, classes: int, outputs: int) -> Floats:
    """eta_Y t / K, after checking what it is made of."""
    where = "the decoder's closed form"
    time, eta_y = numbers(where, "time", time), positive(where, "eta_y", eta_y)
    if not np.isfinite(time).all() or (time < 0).any():
        raise InputError("the decoder's closed form: times must be finite and at least 0.")
    classes, outputs = whole(where, "classes", classes, least=0), whole(where, "outputs", outputs, least=0)
    if classes < 1 or outputs < max(classes, 2):
        raise InputError(
            f"the decoder's closed form: {classes} next tokens among outputs = {outputs} logits; it needs at "
            "least one next token, two logits, and no fewer logits than next tokens."
        )
    return np.asarray(eta_y * time / classes)

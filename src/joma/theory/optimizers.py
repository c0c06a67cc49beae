r"""What momentum, Adam and weight decay leave of JoMA Theorem 1.

The theorem is about gradient flow. Write ``C`` for what it keeps constant, token by token
(``joma.theory.invariants.first_integral``), and ``S = coef sum_k v_k^2`` for its MLP side, so that
``C = z^2 - S`` (linear attention) or ``z - S`` (exp). Then, for any data, gradients and activation:

**Weight decay**, ``dv/dt = eta_w (d - lambda_w v)``, ``dz/dt = eta_z (... - lambda_z z)``. With the decay
rates ``alpha = eta lambda`` and ``r = 2 alpha_z`` (linear) or ``alpha_z`` (exp),

    dC/dt = -r C + (2 alpha_w - r) S,        exactly.

The constant is forgotten. For ``r = 2 alpha_w`` (``matched_decay``) nothing else happens: ``C(t) = C(0)
exp(-2 alpha_w t)``. Linear attention with equal decay rates is such a case; exp attention is one when its
logits decay twice as fast. Otherwise S leaks into C, and where training comes to rest, Theorem 1's
coefficient has become another one, with no trace of the rates (``resting_coefficient``). Discrete steps
have an exact law as well, ``descent_under_decay``.

**Momentum** (heavy ball, ``buffer = beta buffer + direction``). Discrete steps obey an exact identity,
``momentum_drift``. Once the buffer has filled, each squared step counts ``(1 + beta) / (1 - beta)``
times as much as in plain descent: still first order in the step, so C is conserved in the small-step
limit, at rates ``eta / (1 - beta)``.

**Adam** keeps none. While no component of a gradient changes sign, each parameter moves by about its rate
at every step, whatever its gradient, so that ``|v_kl| = eta_w n`` for all k and l and attention follows
*linearly* instead of quadratically, ``z_l = r(n) (eta_z / eta_w) |v_kl|``, with a universal factor r(n)
that rises towards the square root of 3 before it falls to 1: ``adam_pace``. With linear nodes and exp
attention from zero (the setting of Theorem 2) all |v_kl| stay equal for good, because each gradient is
divided by its own size: no token ever wins.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from joma.core.arguments import finite, number, spread, whole
from joma.core.errors import InputError
from joma.theory.attention import Array, Attention
from joma.theory.invariants import logit_coefficient


def decay_rates(
    attention: Attention,
    *,
    weight_decay: float,
    attention_decay: float,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> tuple[float, float]:
    """``r`` and ``2 alpha_w - r``: how fast C is forgotten, and how fast S leaks into it (per unit time).

    Softmax attention is refused: there C needs an integral over the path, which weight decay would have to
    filter too. What stays simple there is ``sum_l z_l``, which decays at rate ``alpha_z``.
    """
    _refuse_normalised(attention, "decay_rates")
    for name, value in (("weight_decay", weight_decay), ("attention_decay", attention_decay)):
        if number("decay_rates", name, value) < 0:
            raise InputError(f"decay_rates: {name} = {value!r} must be a finite number, at least 0.")
    _check_rates("decay_rates", attention, weight_rate, attention_rate)
    forgetting = attention_decay * attention_rate * (2 if attention.kind == "linear" else 1)
    return forgetting, 2 * weight_decay * weight_rate - forgetting


def matched_decay(
    attention: Attention, weight_decay: float, *, weight_rate: float = 1.0, attention_rate: float = 1.0
) -> float:
    """The ``lambda_z`` at which S does not leak: ``C(t) = C(0) exp(-2 eta_w lambda_w t)`` exactly.

    ``lambda_w eta_w / eta_z`` for linear attention, twice that for exp attention.
    """
    _refuse_normalised(attention, "matched_decay")
    _check_rates("matched_decay", attention, weight_rate, attention_rate)
    if number("matched_decay", "weight_decay", weight_decay) < 0:
        raise InputError(f"matched_decay: weight_decay = {weight_decay!r} must be at least 0.")
    return weight_decay * weight_rate / attention_rate * (1 if attention.kind == "linear" else 2)


def integral_under_decay(
    attention: Attention,
    times: Array,
    context_weights: Array,
    initial: Array,
    *,
    weight_decay: float,
    attention_decay: float,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> Array:
    """C(t) under weight decay, from the path of the weights alone; shape (S, ..., M).

    ``C(t) = C(0) e^{-rt} + (2 alpha_w - r) int_0^t e^{-r(t-s)} S(s) ds``. Exact where decays match; otherwise
    the integral is by the trapezoid rule over the given moments (an error of second order in their spacing).

    Args:
        attention: linear or exp.
        times: (S,), increasing.
        context_weights: v (S, ..., K, M).
        initial: C at the first moment, (..., M).
        weight_decay: ``lambda_w``.
        attention_decay: ``lambda_z``.
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``.
    """
    forgetting, leak = decay_rates(
        attention,
        weight_decay=weight_decay,
        attention_decay=attention_decay,
        weight_rate=weight_rate,
        attention_rate=attention_rate,
    )
    where = "integral_under_decay"
    t, v = finite(where, "times", times), finite(where, "context_weights", context_weights)
    if t.ndim != 1 or v.ndim < 3 or t.size == 0 or len(t) != len(v) or (np.diff(t) <= 0).any():
        raise InputError(
            f"integral_under_decay: times {t.shape} must increase, one for each moment of v {v.shape}."
        )
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    side = coefficient * np.square(v).sum(axis=-2)
    value = np.empty_like(side)
    value[0] = spread(where, "initial", initial, side.shape[1:])
    for s, step in enumerate(np.diff(t)):
        kept = np.exp(-forgetting * step)
        value[s + 1] = kept * value[s] + leak * step * (kept * side[s] + side[s + 1]) / 2
    return np.asarray(value)


def descent_under_decay(
    attention: Attention,
    context_weights: Array,
    logits: Array,
    *,
    weight_decay: float,
    attention_decay: float,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> Array:
    """C under plain descent with weight decay, exactly, from the path at *every* step; (S, ..., M).

    With ``a = eta lambda``, ``q_k = v_k(s+1) - (1 - a_w) v_k(s)`` the gradient's share of a step, and ``Y =
    (S(s+1) - (1 - a_w)^2 S(s) - coef sum_k q_k^2) / (1 - a_w)``, which is ``2 coef sum_k v_k q_k``,

        exp:     C(s+1) = (1 - a_z) (C + S)(s) + Y - S(s+1),
        linear:  C(s+1) = (1 - a_z)^2 (C + S)(s) + (1 - a_z) Y + p^2 - S(s+1),  p = z(s+1) - (1 - a_z) z(s).

    No remainder, for any batches and step sizes below ``a = 1``. The logits enter at the first step and, for
    linear attention, by the squared steps p, as they do without decay.

    Args:
        attention: linear or exp.
        context_weights: v (S, ..., K, M), one moment a step.
        logits: z (S, ..., M).
        weight_decay: ``lambda_w``.
        attention_decay: ``lambda_z``.
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``.
    """
    decay_rates(  # for its checks
        attention,
        weight_decay=weight_decay,
        attention_decay=attention_decay,
        weight_rate=weight_rate,
        attention_rate=attention_rate,
    )
    v, z = _path("descent_under_decay", context_weights, logits)
    kept_w, kept_z = 1 - weight_rate * weight_decay, 1 - attention_rate * attention_decay
    if not (kept_w > 0 and kept_z > 0):
        raise InputError(
            f"descent_under_decay: rate * decay = {1 - kept_w:g} (weights), {1 - kept_z:g} (logits) "
            "must be below 1."
        )
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    side = coefficient * np.square(v).sum(axis=-2)
    gradient_steps = coefficient * np.square(v[1:] - kept_w * v[:-1]).sum(axis=-2)
    work = (side[1:] - kept_w**2 * side[:-1] - gradient_steps) / kept_w
    linear = attention.kind == "linear"
    value = np.empty_like(z)
    value[0] = (z[0] ** 2 if linear else z[0]) - side[0]
    for s in range(len(z) - 1):
        if linear:
            step = z[s + 1] - kept_z * z[s]
            left = kept_z**2 * (value[s] + side[s]) + kept_z * work[s] + step**2
        else:
            left = kept_z * (value[s] + side[s]) + work[s]
        value[s + 1] = left - side[s + 1]
    return value


def resting_coefficient(attention: Attention, *, weight_decay: float, attention_decay: float) -> float:
    """The factor before ``sum_k v_k^2`` where training with weight decay has come to rest.

    ``z^2 = (lambda_w / lambda_z) sum v^2`` (linear), ``z = lambda_w / (T lambda_z) sum v^2`` (exp), with no
    constant and no rates: at equal decays and rates, exp attention's logits are twice what Theorem 1 says.
    """
    _refuse_normalised(attention, "resting_coefficient")
    for name, value in (("weight_decay", weight_decay), ("attention_decay", attention_decay)):
        number("resting_coefficient", name, value)
    if not (attention_decay > 0 and weight_decay > 0):
        raise InputError(
            f"resting_coefficient: weight_decay = {weight_decay!r} and attention_decay = {attention_decay!r} "
            "must be above 0; without decay of both there need be no rest."
        )
    ratio = weight_decay / attention_decay
    return ratio if attention.kind == "linear" else ratio / attention.temperature


def momentum_drift(
    attention: Attention,
    context_weights: Array,
    logits: Array,
    *,
    momentum: float,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> Array:
    """How far heavy-ball steps move C, exactly, from the path at *every* step; (S, ..., M), 0 first.

    With ``e_s = -coef sum_k (Delta v_k(s))^2`` (exp), plus ``(Delta z(s))^2`` (linear, coef for squares),

        C(n) - C(0) = sum_{s<n} e_s (1 + 2 beta (1 - beta^{n-1-s}) / (1 - beta)),

    no remainder, for any batches, gradients and step sizes, both parameters with the same ``momentum`` and
    buffers empty at the first step. ``momentum = 0`` is plain descent. For exp attention never positive.

    Args:
        attention: linear or exp.
        context_weights: v (S, ..., K, M), one moment a step.
        logits: z (S, ..., M).
        momentum: beta in [0, 1).
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``.
    """
    _refuse_normalised(attention, "momentum_drift")
    if not 0 <= number("momentum_drift", "momentum", momentum) < 1:
        raise InputError(f"momentum_drift: momentum = {momentum!r} must lie in [0, 1).")
    v, z = _path("momentum_drift", context_weights, logits)
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    error = -coefficient * np.square(np.diff(v, axis=0)).sum(axis=-2)
    if attention.kind == "linear":
        error = error + np.square(np.diff(z, axis=0))
    # The buffers' own mismatch, rho_s = beta (rho_{s-1} + 2 e_{s-1}), adds to C at each later step.
    mismatch = lfilter([0.0, 2 * momentum], [1.0, -momentum], error, axis=0)
    drift = np.zeros_like(z)
    drift[1:] = np.cumsum(error + mismatch, axis=0)
    return drift


def adam_pace(steps: int, *, betas: tuple[float, float] = (0.9, 0.999)) -> Array:
    """``r(n)``, n = 1 ... steps: Adam's ``z / |v|`` in units of ``eta_z / eta_w``, the same for all tokens.

    From zero weights and logits, with Adam on both (bias-corrected, epsilon negligible), as long as the
    gradients of the weights stay nearly constant (the weights still small): then ``|v_kl| = eta_w n``, the
    logits' gradient grows like ``s - 1``, and ``r(n) = (1/n) sum_{s<=n} mhat_s / sqrt(vhat_s)`` on that ramp.
    Rises towards sqrt(3) while ``1/(1 - beta_1) << n << 1/(1 - beta_2)`` (to 1.563 at n = 784 with the usual
    betas), and falls to 1 long after.
    """
    steps = whole("adam_pace", "steps", steps)
    both = finite("adam_pace", "betas", betas)
    if both.shape != (2,) or np.any((both < 0) | (both >= 1)):
        raise InputError(f"adam_pace: betas = {betas!r} must be two numbers in [0, 1).")
    ramp = np.arange(steps, dtype=np.float64)
    count = np.arange(1, steps + 1)
    first, second = betas
    mean = lfilter([1 - first], [1.0, -first], ramp) / (1 - first**count)
    square = lfilter([1 - second], [1.0, -second], ramp**2) / (1 - second**count)
    step = np.divide(mean, np.sqrt(square), out=np.zeros(steps), where=square > 0)
    return np.asarray(np.cumsum(step) / count)


def _path(where: str, context_weights: Array, logits: Array) -> tuple[Array, Array]:
    v, z = finite(where, "context_weights", context_weights), finite(where, "logits", logits)
    if v.ndim < 3 or len(v) == 0 or z.shape != (*v.shape[:-2], v.shape[-1]):
        raise InputError(
            f"{where}: context_weights {v.shape} and logits {z.shape} do not match; give "
            "(steps, ..., nodes, tokens) and (steps, ..., tokens)."
        )
    return v, z


def _check_rates(where: str, attention: Attention, weight_rate: float, attention_rate: float) -> None:
    for name, value in (("weight_rate", weight_rate), ("attention_rate", attention_rate)):
        number(where, name, value)
    logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)  # checks their signs


def _refuse_normalised(attention: Attention, where: str) -> None:
    if not isinstance(attention, Attention):
        raise InputError(f"{where}: attention = {attention!r}; give an Attention.")
    if attention.kind == "softmax":
        raise InputError(
            f"{where}: softmax attention has no such law (its invariant needs an integral over the path); "
            "give linear or exp attention."
        )

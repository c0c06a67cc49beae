"""JoMA Theorem 1: the attention logits follow from the MLP weights. Each statement as printed and as right.

Setting: Eq. 2 with rates ``eta_z`` (logits) and ``eta_w`` (weights) and temperature ``T``, for any data, any
back-propagated gradients (depending on time or state as they like) and any activation. Needed is
``U_C' U_C = I`` and ``U_C' u_q = 0`` (or no residual). Arrays: contextual weights ``v = U_C' w`` (..., K, M),
logits ``z`` (..., M), implicit bias ``xi`` (..., K), mean scores ``bbar = E[b]`` (..., M). Squares of vectors
are elementwise.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from joma.core.arguments import arrays, positive
from joma.core.errors import InputError, nearest
from joma.theory.attention import Array, Attention

SoftmaxForm = Literal["printed", "signed", "corrected"]


def logit_coefficient(
    attention: Attention, *, weight_rate: float = 1.0, attention_rate: float = 1.0
) -> float:
    """The factor before ``sum_k v_k^2`` in Theorem 1.

    ``z^2 = (eta_z / eta_w) sum v^2 + c`` for linear attention, whatever the temperature; ``z = eta_z /
    (2 T eta_w) sum v^2 + c`` for exp attention, and the same factor leads softmax attention. Printed
    without rates and temperature, that is, for ``eta_z = eta_w`` and ``T = 1``.
    """
    where = "logit_coefficient"
    ratio = positive(where, "attention_rate", attention_rate) / positive(where, "weight_rate", weight_rate)
    return ratio if attention.kind == "linear" else ratio / (2 * attention.temperature)


def first_integral(
    attention: Attention,
    logits: Array,
    context_weights: Array,
    *,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    correction: Array | None = None,
) -> Array:
    """What the gradient flow keeps constant, per contextual token (..., M): the ``c`` of Theorem 1, exactly.

    Linear: ``z^2 - coef sum v^2``. Exp: ``z - coef sum v^2``. Softmax: ``z - coef (sum v^2 - 2 Q)``, where
    ``Q`` (``correction``) integrates ``eta_w sum_k E[g_k h'_k b (b . v_k)]``; no function of the present
    weights can replace it.

    Raises:
        InputError: shapes that do not match, values that are not finite, or softmax attention without its
            ``correction``.
    """
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    logits, context_weights, total = arrays(
        "first_integral",
        logits=(logits, "... M"),
        context_weights=(context_weights, "... K M"),
        correction=(np.zeros_like(logits) if correction is None else correction, "... M"),
    )
    return _constant(attention, coefficient, logits, context_weights, None if correction is None else total)


def _constant(
    attention: Attention, coefficient: float, logits: Array, context_weights: Array, correction: Array | None
) -> Array:
    """``first_integral`` of arguments that have been checked, for every evaluation of a flow."""
    squares = np.square(context_weights).sum(axis=-2)
    if attention.kind == "linear":
        return np.asarray(np.square(logits) - coefficient * squares)
    if attention.kind == "softmax":
        if correction is None:
            raise InputError(
                "first_integral: softmax attention needs the correction integral; pass a trajectory's "
                "correction."
            )
        squares = squares - 2 * correction
    return np.asarray(logits - coefficient * squares)


def predict_logits(
    attention: Attention,
    context_weights: Array,
    *,
    initial_context_weights: Array,
    initial_logits: Array,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    correction: Array | None = None,
) -> Array:
    """Theorem 1 from any initial state: the logits ``z(t)`` (..., M) out of the weights ``v(t)``, exactly.

    Linear attention leaves the sign of ``z`` open. It is that of ``z(0)`` wherever ``z(0)^2 >= coef sum
    v(0)^2``; elsewhere ``z`` can pass through zero, and the weights alone do not tell when.

    Raises:
        InputError: linear attention with an undecided sign (``first_integral`` gives ``z^2``),
            softmax attention without its ``correction``, or shapes that do not match.
    """
    given = {
        "initial_logits": (initial_logits, "... M"),
        "context_weights": (context_weights, "... K M"),
        "initial_context_weights": (initial_context_weights, "... K M"),
    }
    if correction is not None:
        given["correction"] = (correction, "... M")
    initial_logits, context_weights, initial_context_weights, *rest = arrays("predict_logits", **given)
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    zeros = np.zeros_like(initial_logits)
    none_yet = None if correction is None else zeros
    constant = _constant(attention, coefficient, initial_logits, initial_context_weights, none_yet)
    offset = _constant(attention, coefficient, zeros, context_weights, rest[0] if rest else None)
    value = constant - offset
    if attention.kind != "linear":
        return np.asarray(value)
    if (constant < 0).any():
        token = int(np.argwhere(constant < 0)[0][-1])
        raise InputError(
            f"predict_logits: the sign of linear attention's logit of token {token} is not decided by the "
            "weights, since z(0)^2 is below coef * sum v(0)^2; use first_integral for z^2."
        )
    return np.asarray(np.sign(initial_logits) * np.sqrt(np.maximum(value, 0.0)))


def softmax_logits(
    context_weights: Array,
    mean_scores: Array,
    *,
    initial_context_weights: Array,
    initial_logits: Array,
    form: SoftmaxForm = "corrected",
    bias: Array | None = None,
    temperature: float = 1.0,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> Array:
    """Theorem 1's closed form for softmax attention: an approximation at best, in three forms.

    printed
        ``1/2 sum_k v_k^2 |v_k|^2 bbar + c``: a minus sign was lost.
    signed
        ``1/2 sum_k (v_k^2 - |v_k|^2 bbar) + c`` (Eq. 18). Drops ``E[g db](bbar . v)``, which is of the
        same order as what it keeps of the samples' spread, unless ``E[g_k h'_k] = 0`` (balanced
        cross-entropy). Around a uniform ``bbar`` nothing else is left, and it errs by a factor 2.
    corrected
        ``1/2 sum_k [v_k^2 - |v_k|^2 bbar - (v_k - v_k(0) - xi_k bbar)(bbar . (v_k + v_k(0)))] + c``: exact to
        leading order in the spread of the samples, when each ``v_k - v_k(0)`` keeps its direction and
        ``bbar`` stays put. Reduces to the formula with ``v_k(0) = 0`` for zero initialisation.

    All times ``eta_z / (T eta_w)``, with ``c`` from the initial state. ``bbar`` never stays put while ``z``
    moves (see ``rigidity``), so that all three lose their way in the end.

    Raises:
        InputError: an unknown form, the corrected form without ``bias``, or shapes that do not match.
    """
    if form not in get_args(SoftmaxForm):
        raise InputError(
            f"softmax_logits: form {form!r} is unknown; {nearest(str(form), get_args(SoftmaxForm))}"
        )
    if form == "corrected" and bias is None:
        raise InputError("softmax_logits: the corrected form needs the implicit bias xi; pass bias.")
    coefficient = logit_coefficient(
        Attention(temperature=temperature), weight_rate=weight_rate, attention_rate=attention_rate
    )
    context_weights, mean, initial_context_weights, initial_logits, xi = arrays(
        "softmax_logits",
        context_weights=(context_weights, "... K M"),
        mean_scores=(mean_scores, "... M"),
        initial_context_weights=(initial_context_weights, "... K M"),
        initial_logits=(initial_logits, "... M"),
        bias=(np.zeros(np.shape(context_weights)[-2:-1]) if bias is None else bias, "... K"),
    )
    mean = mean[..., None, :]

    def value(v: Array) -> Array:
        norms = np.square(v).sum(axis=-1, keepdims=True) * mean
        return np.asarray((v * v * norms if form == "printed" else v * v - norms).sum(axis=-2))

    change = value(context_weights) - value(initial_context_weights)
    if form == "corrected":
        moved = context_weights - initial_context_weights - xi[..., None] * mean
        along = ((context_weights + initial_context_weights) * mean).sum(axis=-1, keepdims=True)
        change = change - (moved * along).sum(axis=-2)
    return np.asarray(initial_logits + coefficient * change)


def descent_drift(
    attention: Attention,
    *,
    squared_weight_steps: Array,
    squared_logit_steps: Array,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> Array:
    """How far plain simultaneous gradient descent moves ``first_integral``, exactly (..., M).

    Linear: ``sum_s (Delta z)^2 - coef sum_s sum_k (Delta v_k)^2``, of either sign. Exp and softmax:
    ``-coef sum_s sum_k (Delta v_k)^2``, never positive (softmax: with the correction summed step by step).
    No remainder: for any batches, any size of step. The sums run over the steps taken.

    Raises:
        InputError: shapes that do not match, or sums that are not finite.
    """
    squared_weight_steps, squared_logit_steps = arrays(
        "descent_drift",
        squared_weight_steps=(squared_weight_steps, "... M"),
        squared_logit_steps=(squared_logit_steps, "... M"),
    )
    coefficient = logit_coefficient(attention, weight_rate=weight_rate, attention_rate=attention_rate)
    drift = -coefficient * squared_weight_steps
    return np.asarray(drift + squared_logit_steps if attention.kind == "linear" else drift)


def factorisation_gap(signal: Array, scores: Array, sample_weights: Array) -> Array:
    """Theorem 1's hypothesis for softmax attention, per node: 0 where it holds, (..., K, M, M).

    ``E[g_k h'_k b b'] - bbar E[g_k h'_k b]'`` (the transpose is lost in print). Printed is the sum of it
    over k, which is not enough, because each node multiplies its own ``v_k``: with ``g_2 = -g_1`` the sum is
    zero for any data. Node by node it is nearly empty: the first term is symmetric, so that ``E[g_k h'_k b]``
    is parallel to ``bbar``.

    Args:
        signal: ``g_k h'_k`` (..., N, K).
        scores: ``b`` (..., N, M).
        sample_weights: (N,) or (..., N).

    Raises:
        InputError: shapes that do not match, or values that are not finite.
    """
    signal, scores, sample_weights = arrays(
        "factorisation_gap",
        signal=(signal, "... N K"),
        scores=(scores, "... N M"),
        sample_weights=(sample_weights, "... N"),
    )
    weighted = signal * sample_weights[..., None]
    second = np.einsum("...nk,...nl,...nm->...klm", weighted, scores, scores)
    first = np.swapaxes(weighted, -1, -2) @ scores
    mean = np.einsum("...n,...nm->...m", sample_weights, scores)
    return np.asarray(second - mean[..., None, :, None] * first[..., :, None, :])


def closed_form_gap(signal: Array, scores: Array, sample_weights: Array, context_weights: Array) -> Array:
    """What must vanish for Eq. 17 to hold at an instant: ``sum_k E[g_k h'_k (b . v_k)(b - bbar)]`` (..., M).

    Exactly, ``dz/dt = (eta_z / T) (Eq. 17 - this)``. Weaker than any form of the printed hypothesis.

    Raises:
        InputError: shapes that do not match, or values that are not finite.
    """
    signal, scores, sample_weights, context_weights = arrays(
        "closed_form_gap",
        signal=(signal, "... N K"),
        scores=(scores, "... N M"),
        sample_weights=(sample_weights, "... N"),
        context_weights=(context_weights, "... K M"),
    )
    weighted = signal * sample_weights[..., None]
    along = scores @ np.swapaxes(context_weights, -1, -2)
    mean = np.einsum("...n,...nm->...m", sample_weights, scores)
    amount = (weighted * along).sum(axis=-1)
    return np.asarray(np.einsum("...n,...nm->...m", amount, scores - mean[..., None, :]))


def rigidity(scores: Array, sample_weights: Array) -> Array:
    """``lambda_2`` (...): how fast ``bbar`` must move when softmax logits move.

    ``|dbbar/dt| >= lambda_2 |dz/dt| / T``. It is the second smallest eigenvalue of ``E[diag(b) - b b']``,
    whose kernel is the constant vectors as soon as the samples' tokens overlap enough to connect all
    tokens; the logits' sum is constant, so ``dz`` has no part in that kernel. Then ``lambda_2 > 0``, and
    Theorem 1's hypothesis "bbar is constant" holds only when ``z`` does not move at all.

    Raises:
        InputError: fewer than two tokens, shapes that do not match, or values that are not finite.
    """
    b, sample_weights = arrays(
        "rigidity", scores=(scores, "... N M"), sample_weights=(sample_weights, "... N")
    )
    if b.shape[-1] < 2:
        raise InputError("rigidity: one token alone has no second eigenvalue; give at least two tokens.")
    mean = np.einsum("...n,...nm->...m", sample_weights, b)
    second = np.einsum("...n,...nl,...nm->...lm", np.broadcast_to(sample_weights, b.shape[:-1]), b, b)
    covariance = mean[..., None] * np.eye(b.shape[-1]) - second
    return np.asarray(np.linalg.eigvalsh(covariance)[..., 1])


def linear_attention_solution(
    times: Array,
    *,
    initial_logits: Array,
    drive: Array,
    temperature: float = 1.0,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
) -> tuple[Array, Array]:
    """``v(t)`` and ``z(t)`` for linear attention, one linear node, ``v(0) = 0``, stationary ``g``.

    ``v = z(0) sqrt(eta_w / eta_z) sinh(omega t)``, ``z = z(0) cosh(omega t)``, ``omega = Delta sqrt(eta_w
    eta_z) / (T A)``. With ``z(0) = 0`` nothing ever moves: "under zero initialisation c = 0" is true of
    linear attention, and empty.

    Args:
        times: (S,).
        initial_logits: ``z(0)`` (M,).
        drive: ``Delta / A = E[g x] / A`` (M,).
        temperature: ``T``.
        weight_rate: ``eta_w``.
        attention_rate: ``eta_z``.

    Raises:
        InputError: shapes that do not match, values that are not finite, a temperature or a rate that is
            not positive, or times at which the solution has left the range of float64.
    """
    kind = Attention(kind="linear", temperature=temperature)
    logit_coefficient(kind, weight_rate=weight_rate, attention_rate=attention_rate)
    moments, z0, pull = arrays(
        "linear_attention_solution",
        times=(times, "S"),
        initial_logits=(initial_logits, "M"),
        drive=(drive, "M"),
    )
    omega = pull * np.sqrt(weight_rate * attention_rate) / temperature
    angle = np.multiply.outer(moments, omega)
    # cosh overflows at 710; a little less leaves room for the factors before it
    if (np.abs(angle) > 690).any():
        late = moments[np.abs(angle).max(axis=-1).argmax()]
        raise InputError(
            f"linear_attention_solution: at time {late:g} the solution "
            f"has left the range of float64; give times up to {690 / np.abs(omega).max():g}."
        )
    return np.asarray(z0 * np.sqrt(weight_rate / attention_rate) * np.sinh(angle)), np.asarray(
        z0 * np.cosh(angle)
    )

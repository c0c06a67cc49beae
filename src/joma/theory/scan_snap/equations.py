"""Scan&Snap's Y/Z dynamics: one attention layer without positions, in the reparametrised weights.

Y = U W_V^T U^T decodes, Z = U W_Q W_K^T U^T holds the attention logits (1/sqrt(d) is absorbed in Z; the
slides drop it). For a sequence of class n with last token m = psi(n), attention turns the frequencies
P(l|n) of its tokens into

    c_n(l) = P(l|n) exp(z_ml) / sum_l' P(l'|n) exp(z_ml'),       f_n = c_n / |c_n|_2        (Lemma 2)

and the model predicts alpha_n = softmax(Y^T f_n). Gradient ascent on the log-likelihood gives

    Y'   = eta_Y  sum_n P(n) f_n (e_n - alpha_n)^T,
    z_m' = eta_Z  sum_{n in psi^-1(m)} P(n) f_n * (P_perp g_n),   g_n = Y (e_n - alpha_n),

with P_perp = 1 - f_n f_n^T and * entrywise. The second line is the slides'
X^T diag(b) X (P_perp / |X^T b|) g with Lemma 2 put in; diag(b) may stand for the softmax's
diag(b) - b b^T exactly, because P_perp X^T b = 0.

Everything here takes and returns float64 arrays; leading axes broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, logsumexp

from joma.core.arguments import NotFiniteError, arrays, check_broadcast, finite, numbers, whole
from joma.core.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def attended_mass(frequencies: ArrayLike, logits: ArrayLike) -> Floats:
    """Lemma 2's c: the mass that attention puts on each token, shape (..., C).

    ``frequencies`` (..., C) are token counts or P(l|n), in any scale; ``logits`` (..., C) are z_m. With
    the counts of a sequence this is X^T b exactly, at every T; with P(l|n) it is the limit of
    T -> infinity. Tokens of frequency zero get zero. Raises InputError for negative frequencies, for
    rows without a token, and for logits that are not finite.
    """
    frequencies = numbers("attended", "frequencies", frequencies)
    logits = numbers("attended", "logits", logits)
    columns = frequencies.shape[-1:]
    if not all(columns) or frequencies.ndim == 0 or logits.shape[-1:] not in (columns, (1,)):
        raise InputError(
            f"attended: frequencies {frequencies.shape} and logits {logits.shape} do not match; "
            "give (..., C) of each."
        )
    if not np.isfinite(logits).all():
        raise InputError("attended: the attention logits are not finite; lower the learning rates.")
    if (frequencies < 0).any() or not np.isfinite(frequencies).all():
        raise InputError("attended: frequencies must be finite and at least 0.")
    if not (frequencies > 0).any(axis=-1).all():
        raise InputError("attended: a row of frequencies has no token; give each row a positive entry.")
    if frequencies.shape != logits.shape:
        check_broadcast("attended", frequencies=frequencies.shape, logits=logits.shape)
    with np.errstate(divide="ignore"):  # log 0 = -inf is what an absent token should have
        scores = logits + np.log(frequencies)
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def unit(vectors: ArrayLike) -> Floats:
    """f = c / |c|_2 along the last axis: what the slides write as LN (no mean is subtracted).

    Raises InputError for a vector of zeros and for values that are not finite.
    """
    vectors = numbers("unit", "vectors", vectors)
    norms = np.linalg.norm(np.atleast_1d(vectors), axis=-1, keepdims=True)
    if not ((norms > 0) & (norms < np.inf)).all():
        raise InputError("unit: a vector has no finite length above 0; leave out zeros and infinities.")
    return np.asarray(vectors / norms)


def distinct_entropy(mass: ArrayLike, distinct: ArrayLike) -> Floats:
    """Entropy of c_n restricted to n's distinct tokens and renormalised, nats, shape (..., K).

    What Scan&Snap Fig. 6 averages over n. ``mass`` c (..., K, C), ``distinct`` (K, C) true where token l
    is distinct to n. Raises InputError where a class has no mass on a distinct token.
    """
    given = finite("distinct_entropy", "mass", mass)
    check_broadcast("distinct_entropy", mass=given.shape, distinct=np.shape(distinct))
    if (given < 0).any():
        raise InputError(f"distinct_entropy: a mass is {given.min():g}; give masses of 0 or more.")
    kept = np.where(distinct, given, 0.0)
    total = kept.sum(axis=-1, keepdims=True)
    if not (total > 0).all():
        raise InputError(
            "distinct_entropy: a next token has no attention on distinct tokens of its own; its entropy over "
            "them is not defined."
        )
    return np.asarray(entr(kept / total).sum(axis=-1))


def predictions(decoder: ArrayLike, features: ArrayLike, multiplicity: ArrayLike | None = None) -> Floats:
    """alpha = softmax(Y^T f), shape (..., K, V), of ``features`` (..., K, C) and Y (..., C, V).

    ``multiplicity`` (V,) says how many equal logits a column of Y stands for (see
    ``lumped_multiplicity``); alpha then holds the total of those probabilities. Raises
    InputError for shapes that do not match and for logits that are not finite.
    """
    f, y = numbers("predictions", "features", features), numbers("predictions", "decoder", decoder)
    if f.ndim < 2 or y.ndim < 2 or f.shape[-1] != y.shape[-2]:
        raise InputError(
            f"predictions: features {f.shape} and decoder {y.shape} do not match; give (..., K, C) and "
            "(..., C, V)."
        )
    check_broadcast("predictions", features=f.shape[:-2], decoder=y.shape[:-2])
    scores = f @ y
    if multiplicity is not None:
        m = numbers("predictions", "multiplicity", multiplicity)
        if m.shape != y.shape[-1:] or not (m > 0).all():
            raise InputError(
                f"predictions: multiplicity {m.shape} must be above 0 for each of {y.shape[-1]} columns."
            )
        scores = scores + np.log(m)
    if not np.isfinite(scores).all():
        raise NotFiniteError("predictions: the decoder's logits are not finite; lower the learning rates.")
    return np.asarray(np.exp(scores - logsumexp(scores, axis=-1, keepdims=True)))


def lumped_multiplicity(classes: int, outputs: int) -> Floats:
    """Multiplicities (1, ..., 1, M - K): one column for each next token, one for all the others.

    From Y(0) = 0 the M - K columns of tokens that never come next stay equal, so one stands for all.
    """
    whole("lumped_multiplicity", "classes", classes, least=1)
    if whole("lumped_multiplicity", "outputs", outputs, least=1) < classes:
        raise InputError(
            f"lumped_multiplicity: outputs M = {outputs} is less than the {classes} next tokens."
        )
    never = [float(outputs - classes)] if outputs > classes else []
    return np.array([1.0] * classes + never)


@dataclass(frozen=True)
class Velocities:
    """The right-hand side of the Y/Z dynamics at one state, with what it is made of."""

    decoder: Floats
    """Y', shape (C, V)."""
    logits: Floats
    """z', shape (L, C)."""
    features: Floats
    """f_n, shape (K, C)."""
    predictions: Floats
    """alpha_n, shape (K, V)."""
    backpropagated: Floats
    """g_n = Y (e_n - alpha_n), shape (K, C)."""
    attention: Floats
    """f_n * (P_perp g_n), shape (K, C): what each class asks of its z_m, before P(n) and eta_Z."""


def velocities(
    decoder: Floats,
    logits: Floats,
    *,
    conditional: Floats,
    last_of_next: Integers,
    class_probability: Floats,
    eta_y: float,
    eta_z: float,
    multiplicity: Floats | None = None,
    normalised: bool = True,
) -> Velocities:
    """Y' and z' of the population dynamics (T -> infinity, batch of all classes).

    Shapes: ``decoder`` (C, V), ``logits`` (L, C), ``conditional`` P(l|n) (K, C), ``last_of_next``
    psi (K,), ``class_probability`` P(n) (K,), ``multiplicity`` (V,) or None; all but ``last_of_next`` may
    have leading axes that broadcast. Class n is column n of Y.
    ``normalised=False`` decodes c_n itself instead of f_n = c_n/|c_n|: then
    z_m' = eta_Z sum_n P(n) c_n * (g_n - c_n . g_n), which is the softmax's own Jacobian.
    Raises InputError for shapes that do not match, and for a psi that names no row of ``logits``.
    """
    classes, tokens = conditional.shape[-2:]
    if (
        decoder.shape[-2] != tokens
        or decoder.shape[-1] < classes
        or logits.shape[-1] != tokens
        or last_of_next.shape != (classes,)
        or class_probability.shape[-1:] != (classes,)
        or not 0 <= last_of_next.min() <= last_of_next.max() < logits.shape[-2]
    ):
        raise InputError(
            f"velocities: decoder {decoder.shape}, logits {logits.shape}, conditional {conditional.shape}, "
            f"last_of_next {last_of_next.shape} and class_probability {class_probability.shape} do not "
            "match; give (C, V), (L, C), (K, C), K rows of logits and (K,)."
        )
    mass = attended_mass(conditional, logits[..., last_of_next, :])
    features = unit(mass) if normalised else mass
    alpha = predictions(decoder, features, multiplicity)
    residual = -alpha
    own = np.arange(classes)
    residual[..., own, own] += 1.0
    # A column that stands for several equal logits moves with the mean of their residuals, but passes
    # back the sum.
    share = residual if multiplicity is None else residual / multiplicity
    weight = class_probability[..., None]
    decoder_velocity = eta_y * np.swapaxes(features * weight, -1, -2) @ share
    backpropagated = residual @ np.swapaxes(decoder, -1, -2)
    attention = _pull(features, backpropagated, normalised)
    # membership[m, n] says that class n ends in last token m
    membership = (last_of_next == np.arange(logits.shape[-2])[:, None]).astype(np.float64)
    logits_velocity = eta_z * membership @ (weight * attention)
    return Velocities(decoder_velocity, logits_velocity, features, alpha, backpropagated, attention)


def attention_pull(features: Floats, backpropagated: Floats, *, normalised: bool = True) -> Floats:
    """How a class moves its attention logits, per unit rate and probability, shape (..., C).

    For features f = c/|c| it is f * (P_perp g) = diag(c) (P_perp/|c|) g, the slides' gradient; without
    normalisation (features c, of sum one) it is the softmax's own (diag(c) - c c^T) g.
    """
    features, backpropagated = arrays(
        "attention_pull", features=(features, "... C"), backpropagated=(backpropagated, "... C")
    )
    return _pull(features, backpropagated, normalised)


def _pull(features: Floats, backpropagated: Floats, normalised: bool) -> Floats:
    along = (features * backpropagated).sum(axis=-1, keepdims=True)
    removed = features * along if normalised else along
    return np.asarray(features * (backpropagated - removed))

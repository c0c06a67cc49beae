"""The three attention kinds of JoMA Sec. 2: linear, exp and softmax, with normaliser and temperature.

A sample is its vector of token frequencies ``x`` (not negative); the attention to the contextual tokens
is ``b = sigma(z / T) * x / A`` (Eq. 1; the paper has ``T = 1``, its code does not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from joma.core.arguments import NotFiniteError, arrays, check_broadcast, finite, numbers, positive
from joma.core.errors import DivergenceError, InputError, nearest

Array = NDArray[np.float64]
AttentionKind = Literal["linear", "exp", "softmax"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """How logits ``z`` and token frequencies ``x`` make attention scores ``b`` (JoMA Sec. 2).

    | kind | ``b_l`` | normaliser ``A`` |
    |---|---|---|
    | linear | ``x_l z_l / (T A)`` | a constant, 1 |
    | exp | ``x_l exp(z_l / T) / A`` | a constant, any > 0 |
    | softmax | ``x_l exp(z_l / T) / A`` | ``sum_l x_l exp(z_l / T)`` |
    """

    kind: AttentionKind = "softmax"
    temperature: float = 1.0
    """``T`` > 0: the logits enter divided by it."""
    normaliser: float = 1.0
    """The constant ``A`` > 0 of linear and exp attention; softmax computes its own."""

    def __post_init__(self) -> None:
        if self.kind not in ATTENTION_KINDS:
            raise InputError(
                f"Attention: kind {self.kind!r} is unknown; {nearest(str(self.kind), ATTENTION_KINDS)}"
            )
        for name in ("temperature", "normaliser"):
            positive("Attention", name, getattr(self, name))
        if self.kind == "softmax" and self.normaliser != 1.0:
            raise InputError(
                f"Attention: normaliser = {self.normaliser!r} has no meaning for softmax, which computes "
                "its own; leave it out."
            )

    def scores(self, frequencies: Array, logits: Array) -> Array:
        """The attention scores ``b`` (..., N, M) for frequencies (..., N, M) and logits (..., M).

        Softmax is computed stably; a sample without any token is refused.

        Raises:
            InputError: the shapes do not match, a frequency is not finite, or (softmax) a sample has no
                positive frequency. Logits that are not finite raise an error that is also a DivergenceError,
                for solvers.
            DivergenceError: exp or linear attention left the range of float64.
        """
        x, z = (
            numbers("Attention.scores", "frequencies", frequencies),
            numbers("Attention.scores", "logits", logits),
        )
        if x.ndim < 2 or z.ndim < 1 or x.shape[-1] != z.shape[-1] or x.size == 0:
            raise InputError(
                f"Attention.scores: frequencies {x.shape} and logits {z.shape} do not match; give "
                "(..., samples, tokens) and (..., tokens)."
            )
        if x.ndim > 2 and z.ndim > 1:
            check_broadcast("Attention.scores", frequencies=x.shape[:-2], logits=z.shape[:-1])
        z = z[..., None, :] / self.temperature
        if self.kind == "softmax":
            if x.min() < 0:
                raise InputError(
                    f"Attention.scores: a frequency is {x.min():g}; softmax attention needs frequencies of 0 "
                    "or more."
                )
            return _softmax_scores(x, z)
        with np.errstate(over="ignore", invalid="ignore"):
            b = x * (z if self.kind == "linear" else np.exp(z)) / self.normaliser
        if not np.isfinite(b).all():
            _check_finite(x, z)
            raise DivergenceError(
                f"Attention.scores: {self.kind} attention overflows at logits up to {np.max(z):.3g} "
                "(in units of the temperature); stop before the blow-up."
            )
        return np.asarray(b)

    def pull_back(self, scores: Array, frequencies: Array, covector: Array) -> Array:
        """``L' c`` with ``L = db/dz`` the Jacobian, per sample: how a gradient passes to the logits.

        Args:
            scores: ``b`` (..., N, M), as ``scores`` returned them.
            frequencies: ``x`` (..., N, M); only linear attention needs them.
            covector: ``c`` (..., N, M), the gradient with respect to ``b``.

        Raises:
            InputError: shapes that do not match, or values that are not finite.
        """
        shape = "... N M"
        b, x, c = arrays(
            "Attention.pull_back",
            scores=(scores, shape),
            frequencies=(frequencies, shape),
            covector=(covector, shape),
        )
        return self._pull_back(b, x, c)

    def _pull_back(self, scores: Array, frequencies: Array, covector: Array) -> Array:
        """``pull_back`` without its checks, for every evaluation of a flow."""
        if self.kind == "linear":
            return np.asarray(frequencies * covector / (self.temperature * self.normaliser))
        if self.kind == "exp":
            return scores * covector / self.temperature
        # L = (diag(b) - b b') / T, symmetric.
        mean = np.einsum("...nm,...nm->...n", scores, covector)[..., None]
        return np.asarray(scores * (covector - mean) / self.temperature)

    def jacobian(self, frequencies: Array, logits: Array) -> Array:
        """The Jacobian ``L = db/dz`` (..., N, M, M), rows of ``b``, columns of ``z``."""
        b = self.scores(frequencies, logits)
        identity = np.eye(b.shape[-1])
        if self.kind == "linear":
            diagonal = (
                np.broadcast_to(finite("Attention.jacobian", "frequencies", frequencies), b.shape)
                / self.normaliser
            )
            return np.asarray(diagonal[..., None] * identity / self.temperature)
        dense = b[..., None] * identity
        if self.kind == "softmax":
            dense = dense - b[..., :, None] * b[..., None, :]
        return np.asarray(dense / self.temperature)


SOFTMAX = Attention()
"""Softmax attention at temperature 1."""


def _check_finite(x: Array, z: Array) -> None:
    finite("Attention.scores", "frequencies", x)
    if not np.isfinite(z).all():
        raise NotFiniteError("Attention.scores: the logits are not finite; give finite logits.")


def _softmax_scores(x: Array, z: Array) -> Array:
    unnormalised = x * np.exp(z - z.max(axis=-1, keepdims=True))
    total = unnormalised.sum(axis=-1, keepdims=True)
    if total.min() < 1e-200:
        # The largest logit may belong to a token the sample lacks: shift by the largest that it has.
        if not (x > 0).any(axis=-1).all():
            raise InputError(
                "Attention.scores: a sample has no token of positive frequency, so softmax attention is "
                "undefined on it; leave the sample out."
            )
        shift = np.where(x > 0, z, -np.inf).max(axis=-1, keepdims=True)
        unnormalised = x * np.exp(np.minimum(z - shift, 0.0))
        total = unnormalised.sum(axis=-1, keepdims=True)
    if not np.isfinite(total).all():
        _check_finite(x, z)
        raise DivergenceError("Attention.scores: softmax attention met frequencies too large for float64.")
    return np.asarray(unnormalised / total)

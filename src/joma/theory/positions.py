"""Theorem 1 with trained position biases: which invariants survive, and which coupling breaks them.

A sample holds its tokens by offset from the query, ``x`` (R offsets, M tokens), and exp attention adds a
trained bias per offset to the token's logit, shared by all tokens:

    b_l = sum_r x_rl exp(z_l + p_r),        f = U_C b + u_q,        h_k = phi(w_k . f).

Content and position enter the logit as a sum, so that dz_l/dt = eta_z sum_k v_kl dv_kl/(eta_w dt) as without
positions, and every unit of gradient that reaches a pair (r, l) reaches z_l and p_r alike:

    z_l - eta_z/(2 eta_w) sum_k v_kl^2 = const for every token,    sum_l z_l/eta_z - sum_r p_r/eta_p = const,

exactly, for any data, gradients and activation. Where the position multiplies the content, as a rotation of
queries and keys does, b_l = sum_r x_rl exp(z_l cos(angle_r) + p_r), both break: the null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joma.core.arguments import Array, arrays
from joma.theory.activation import Activation


@dataclass(frozen=True, eq=False)
class PositionDirections:
    """How weights, token logits and position biases grow at unit learning rates (Eq. 2)."""

    weights: Array
    """(K, M + 1): the last column is the bias xi's."""
    logits: Array
    """(M,)."""
    positions: Array
    """(R,)."""


def directions(
    activation: Activation,
    samples: Array,
    gradient: Array,
    weights: Array,
    logits: Array,
    positions: Array,
    *,
    angles: Array | None = None,
) -> PositionDirections:
    """Eq. 2 with position biases, at fixed back-propagated gradients.

    Args:
        activation: phi.
        samples: ``x`` (N, R, M), with equal weights.
        gradient: ``g`` (N, K).
        weights: ``v`` and, last, ``xi`` (K, M + 1).
        logits: ``z`` (M,).
        positions: ``p`` (R,).
        angles: (R,) where the position rotates the content instead of only adding to it; None: it does not.

    Raises:
        InputError: shapes that do not match, or values that are not finite.
    """
    coupling = np.ones_like(positions) if angles is None else np.cos(angles)
    x, g, w, z, p, turn = arrays(
        "positions.directions",
        samples=(samples, "N R M"),
        gradient=(gradient, "N K"),
        weights=(weights, "K d"),
        logits=(logits, "M"),
        positions=(positions, "R"),
        angles=(coupling, "R"),
    )
    v, xi = w[:, :-1], w[:, -1]
    attended = x * np.exp(np.multiply.outer(turn, z) + p[:, None])
    scores = attended.sum(axis=1)
    _, slope = activation(scores @ v.T + xi)
    signal = g * slope / len(x)
    # What reaches each pair of an offset and a token, over all samples.
    reached = np.einsum("nrm,nm->rm", attended, signal @ v)
    return PositionDirections(
        weights=np.concatenate([signal.T @ scores, signal.sum(axis=0)[:, None]], axis=1),
        logits=np.asarray(turn @ reached),
        positions=np.asarray(reached.sum(axis=1)),
    )


def invariants(
    weights: Array,
    logits: Array,
    positions: Array,
    *,
    weight_rate: float = 1.0,
    attention_rate: float = 1.0,
    position_rate: float = 1.0,
) -> tuple[Array, Array]:
    """What stays: ``z - eta_z/(2 eta_w) sum_k v_k^2`` (..., M), ``sum z/eta_z - sum p/eta_p`` (...).

    ``weights`` (..., K, M + 1), ``logits`` (..., M), ``positions`` (..., R).
    """
    v = weights[..., :-1]
    content = logits - 0.5 * attention_rate / weight_rate * np.square(v).sum(axis=-2)
    balance = logits.sum(axis=-1) / attention_rate - positions.sum(axis=-1) / position_rate
    return np.asarray(content), np.asarray(balance)

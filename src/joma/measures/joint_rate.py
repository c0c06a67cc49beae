"""The rate of attention that a layer behaves as if it had: kappa of ``z = kappa/2 sum_k v_k(l)^2 + c``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from joma.core.errors import InputError


class JointRate(NamedTuple):
    """A least-squares slope within queries, all heads together."""

    kappa: float
    """eta_z/(eta_w T^2) of Theorem 1, if it held; of either sign."""
    share: float
    """Of the logits' variance within queries that it accounts for, 0 to 1."""


def joint_rate(logits: Tensor, prediction: Tensor, *, minimum_keys: int = 10) -> JointRate:
    """The slope of the logits over ``1/2 sum_k v_k(l)^2`` of the tokens that a query sees, in float64.

    Args:
        logits: (batch, heads, tokens, tokens), as the causal softmax sees them; what is above the diagonal is
            not looked at, and neither is the first token, the sink.
        prediction: (batch, heads, tokens), ``joma.measures.joint_dynamics.joint_dynamics_prediction``.
        minimum_keys: queries that see fewer, the first left out, do not count.

    Raises:
        InputError: shapes that do not fit, too short sequences, predictions that do not vary.
    """
    if logits.ndim != 4 or logits.shape != (*prediction.shape, prediction.shape[-1]):
        raise InputError(
            f"joint_rate: logits {tuple(logits.shape)} must be (batch, heads, tokens, tokens) for a "
            f"prediction {tuple(prediction.shape)}."
        )
    size = prediction.shape[-1]
    seen = torch.ones(size, size, dtype=torch.bool, device=logits.device).tril()
    seen[:, 0] = False
    seen[: minimum_keys if minimum_keys > 1 else 2] = False
    if not bool(seen.any()):
        raise InputError(f"joint_rate: {size} tokens leave no query with {minimum_keys} keys; give more.")
    weight = seen.double()
    count = weight.sum(-1, keepdim=True).clamp_min(1.0)

    def centre(values: Tensor) -> Tensor:
        inside = values.double().masked_fill(~seen, 0.0)
        return (inside - inside.sum(-1, keepdim=True) / count) * weight

    z, p = centre(logits), centre(prediction[:, :, None].expand_as(logits))
    both, squares, total = (float((a * b).sum()) for a, b in ((z, p), (p, p), (z, z)))
    if not squares > 0 or not total > 0:
        raise InputError("joint_rate: logits or predictions do not vary over the tokens; nothing to relate.")
    return JointRate(both / squares, both * both / (squares * total))

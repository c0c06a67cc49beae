"""The entropy of attention distributions, in nats."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.errors import InputError


def entropy_of_probabilities(probabilities: Tensor) -> Tensor:
    """Entropy of each row, -sum p ln p over the last dimension, in nats.

    Zero probabilities count as zero (the limit of p ln p). Shape (..., keys) -> (...). Half
    precision is computed in float32.

    Raises:
        InputError: if a probability is negative or not a number.
    """
    if probabilities.dtype in (torch.float16, torch.bfloat16):
        probabilities = probabilities.float()
    if not bool((probabilities >= 0).all()):
        raise InputError("attention probabilities hold a negative number or NaN; give rows of a softmax.")
    entropy: Tensor = -torch.special.xlogy(probabilities, probabilities).sum(-1)
    return entropy


def entropy_of_logits(logits: Tensor) -> Tensor:
    """Entropy of softmax(logits) for each row of the last dimension, in nats.

    Computed as log-sum-exp minus the mean logit, without dividing first, so that it stays exact
    for rows that are nearly one-hot. Logits of -inf are masked keys; a row of nothing else has no
    entropy and gives NaN. Shape (..., keys) -> (...).

    Raises:
        InputError: if a logit is NaN or +inf.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if bool(torch.isnan(logits).any() | torch.isposinf(logits).any()):
        raise InputError(
            "attention logits hold NaN or +inf; only finite values and -inf (masked) have an entropy."
        )
    top = logits.amax(-1, keepdim=True)
    empty = torch.isneginf(top)
    shifted = torch.where(empty, logits.new_zeros(()), logits - torch.where(empty, 0.0, top))
    weights = shifted.exp()
    total = weights.sum(-1)
    # A masked key has weight 0 and shifted -inf; its product must be 0, not NaN.
    mean = torch.where(weights > 0, weights * shifted, 0.0).sum(-1) / total
    entropy = total.log() - mean
    return torch.where(empty.squeeze(-1), torch.nan, entropy.clamp_min(0.0))

"""The entropy of attention distributions, in nats."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.tensors import Numbers, dense


def entropy_of_probabilities(probabilities: Numbers) -> Tensor:
    """Entropy of each row, -sum p ln p over the last dimension, in nats.

    Zero probabilities count as zero (the limit of p ln p). Shape (..., keys) -> (...). Half
    precision is computed in float32. Tensors, NumPy arrays and nested lists are taken alike.

    Raises:
        InputError: if a probability is negative or not a number, if a row is empty, or if it does not sum
            to one (within 1e-3, or 2 units of rounding of half precision).

    Examples:
        >>> joma.entropy_of_probabilities([[0.5, 0.5], [0.25, 0.75]])
        tensor([0.6931, 0.5623], dtype=torch.float64)
    """
    rows, rounding = _rows(probabilities, "entropy_of_probabilities")
    if rows.numel() and not bool(rows.amin() >= 0):
        raise InputError("attention probabilities hold a negative number or NaN; give rows of a softmax.")
    off = (rows.sum(-1) - 1).abs()
    if off.numel() and not bool(off.amax() <= max(1e-3, 2 * rounding)):
        worst = rows.sum(-1).flatten()[off.argmax()]
        raise InputError(
            f"entropy_of_probabilities: a row sums to {float(worst):.6g}, not to 1; give rows of a softmax, "
            "or divide each row by its sum."
        )
    entropy: Tensor = -torch.special.xlogy(rows, rows).sum(-1)
    return entropy


def entropy_of_logits(logits: Numbers) -> Tensor:
    """Entropy of softmax(logits) for each row of the last dimension, in nats.

    Computed as log-sum-exp minus the mean logit, without dividing first and with log1p of what stands
    beside the largest term, so that it stays exact for rows that are nearly one-hot. Logits of -inf are
    masked keys. **A fully masked row, nothing but -inf, has no entropy and gives NaN**: the one NaN that is
    meant; leave such rows out of a mean, for instance with ``nanmean``. Shape (..., keys) -> (...). Tensors,
    NumPy arrays and nested lists are taken alike; lists and whole numbers are computed in float64, half
    precision in float32.

    Raises:
        InputError: if a logit is NaN or +inf, or if a row is empty.

    Examples:
        >>> joma.entropy_of_logits([[0.0, 0.0], [0.0, -float("inf")]])
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    logits, _ = _rows(logits, "entropy_of_logits")
    if bool(torch.isnan(logits).any() | torch.isposinf(logits).any()):
        raise InputError(
            "attention logits hold NaN or +inf; only finite values and -inf (masked) have an entropy."
        )
    top = logits.amax(-1, keepdim=True)
    empty = torch.isneginf(top)
    shifted = torch.where(empty, logits.new_zeros(()), logits - torch.where(empty, 0.0, top))
    weights = shifted.exp()
    # Beside the largest weight, 1, the sum of the others would lose its digits: log(1 + rest).
    rest = weights.scatter(-1, shifted.argmax(-1, keepdim=True), 0.0).sum(-1)
    # A masked key has weight 0 and shifted -inf; its product must be 0, not NaN.
    mean = torch.where(weights > 0, weights * shifted, 0.0).sum(-1) / (1 + rest)
    entropy = rest.log1p() - mean
    return torch.where(empty.squeeze(-1), torch.nan, entropy.clamp_min(0.0))


def _rows(values: Numbers, where: str) -> tuple[Tensor, float]:
    """Rows in float32 or float64, and the unit of rounding of what was given."""
    rows = dense(where, "the rows", values)
    if not rows.is_floating_point() and not rows.is_complex():
        rows = rows.double()
    if rows.is_complex() or rows.dim() == 0 or rows.shape[-1] == 0:
        raise InputError(
            f"{where}: got {rows.dtype} of shape {tuple(rows.shape)}; give real numbers (..., keys) with at "
            "least one key."
        )
    rounding = torch.finfo(rows.dtype).eps if rows.is_floating_point() else 0.0
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float(), rounding

"""What every way to received attention computes: sums over the rows, and how far each may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.measures.attention.scores import Scores

_SPREAD = 0.25
"""Times the error estimate of one score: roundings of many rows and keys average out, see the tests."""
_FEW = 64
"""Up to so many keys nothing averages out."""


@dataclass
class Sums:
    """Sums over the rows, (batch, heads, keys) float64 each."""

    mass: Tensor
    mass_error: Tensor
    maximum: Tensor
    square: Tensor
    """Of p^2."""
    removal: Tensor
    """Of the squared change of the output."""
    removal_error: Tensor


def doubts(scores: Scores, typical: Tensor, top: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """What p_ij is off, relatively: a_i |k_j| + b_i; a and b (batch, heads, rows).

    Args:
        scores: of the rows.
        typical: (batch, heads, rows) root mean square of the lengths of the keys under p.
        top: (batch, heads, rows) each row's largest score, in nats.
        keys: how many are summed.
    """
    length = scores.length()
    size = length * typical + top.abs() + 8 + math.sqrt(keys) / 16
    if scores.softcap is not None:
        size = size + scores.softcap
    rounding = scores.rounding * (1.0 if keys <= _FEW else _SPREAD)
    return rounding * length, rounding * size


def underflow_bound(dtype: torch.dtype) -> float:
    """The smallest normal number, which bounds what underflows in each row."""
    return torch.finfo(dtype).tiny

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


@dataclass(frozen=True)
class Rounding:
    """What p_ij is off, relatively: slope_i (|k_j| + typical_i) + unit (|top_i| + extra).

    ``typical`` is the root mean square of the lengths of the keys under p, ``top`` the largest score in nats.
    """

    slope: Tensor
    """(batch, heads, rows)"""
    unit: float
    extra: float

    @classmethod
    def of(cls, scores: Scores, keys: int) -> Rounding:
        """Of rows whose sums have so many terms."""
        unit = scores.rounding * (1.0 if keys <= _FEW else _SPREAD)
        extra = 8 + math.sqrt(keys) / 16 + (scores.softcap or 0.0)
        return cls(unit * scores.length(), unit, extra)

    def floor(self, typical: Tensor, top: Tensor) -> Tensor:
        """All but slope_i |k_j|, (batch, heads, rows)."""
        return self.slope * typical + self.unit * (top.abs() + self.extra)


def underflow_bound(dtype: torch.dtype) -> float:
    """The smallest normal number, which bounds what underflows in each row."""
    return torch.finfo(dtype).tiny

"""How many directions a weight matrix really uses."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.errors import InputError


def stable_rank(weight: Tensor) -> float:
    """Stable rank ||W||_F^2 / sigma_1^2 of a matrix, between 1 and its rank.

    Computed in float64 from the full singular spectrum, whatever the dtype.

    Raises:
        InputError: if the weight is not a matrix, holds NaN or infinities, or is zero (whose
            stable rank is undefined).
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise InputError(
            f"the stable rank needs a matrix with entries, not a tensor of shape {tuple(weight.shape)}."
        )
    matrix = weight.detach().to(torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("the weight matrix holds NaN or infinities; its stable rank is undefined.")
    # Scaled first: squares of entries near the ends of float64's range would over- or underflow.
    scale = matrix.abs().max()
    if scale == 0:
        raise InputError("the weight matrix is zero; its stable rank is undefined.")
    singular_values = torch.linalg.svdvals(matrix / scale)
    return float((singular_values / singular_values[0]).square().sum())

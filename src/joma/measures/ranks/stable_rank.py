"""How many directions a weight matrix really uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from joma.core.arguments import Array
from joma.core.errors import InputError
from joma.core.memory import enough_memory
from joma.measures.ranks.matrices import dense_weight, out_of_memory, refuse_unusable
from joma.measures.ranks.spectral_norm import SpectralNorm, checked_tolerance, matrix_norm
from joma.measures.tensors import Numbers


@dataclass(frozen=True, repr=False)
class StableRank:
    """The stable rank of a matrix and how far off it may be."""

    value: float
    """|W|_F^2 / sigma_1^2; not below the truth, but for rounding."""
    error_bound: float
    """The truth lies at most this far below ``value``: proven if ``certified``, estimated if not."""
    certified: bool
    """Whether the bound is proven (by the Cholesky test of sigma_1)."""
    spectral_norm: SpectralNorm
    """sigma_1 and the Frobenius norm it was made of."""

    def __repr__(self) -> str:
        how = "proven" if self.certified else "estimated"
        return f"<StableRank: {self.value:.6g}, at most {self.error_bound:.1g} too large ({how})>"


def stable_rank(weight: Numbers, *, rtol: float | None = None, certify: bool = False) -> float | Array:
    """Stable rank ||W||_F^2 / sigma_1^2, between 1 and the rank: a float, or an array for a batch.

    What the JoMA paper follows along training (Sec. 5.1, its Fig. 6). Found without a singular value
    decomposition: see ``joma.measures.ranks.spectral_norm.spectral_norm_estimate`` for how, from which
    size on, and for what is proven; ``stable_rank_estimate`` gives the error bound too.

    Args:
        weight: (rows, columns), or (..., rows, columns) for a batch of matrices; a torch tensor (dense,
            sparse, quantised, distributed), NumPy array or SciPy sparse matrix of any floating dtype.
        rtol: relative error to reach, default 1e-6.
        certify: find sigma_1 with proof that none is larger.

    Returns:
        float for a matrix; a float64 NumPy array of shape (...) for a batch.

    Raises:
        InputError: not a real matrix, NaN or infinities (and where), a zero matrix (its stable rank is
            undefined), or an ``rtol`` out of reach.

    Examples:
        >>> round(joma.stable_rank(np.diag([2.0, 1.0, 1.0])), 12)  # (4 + 1 + 1) / 4
        1.5
    """
    tensor = dense_weight(weight, "stable_rank")
    tolerance = checked_tolerance(rtol, certify, "stable_rank")
    return _each(
        tensor, "stable_rank", lambda matrix, where: _estimate(matrix, tolerance, certify, where).value
    )


def stable_rank_estimate(
    weight: Numbers, *, rtol: float | None = None, certify: bool = False, where: str = "stable_rank_estimate"
) -> StableRank:
    """``stable_rank`` of one matrix, with its error bound and what it was made of.

    ``where`` names the matrix in messages.

    Examples:
        >>> round(joma.stable_rank_estimate(np.eye(3)).value, 12)
        3.0
    """
    matrix = dense_weight(weight, where)
    if matrix.ndim != 2:
        raise InputError(
            f"{where} takes one matrix, not a batch of shape {tuple(matrix.shape)}; call it for each."
        )
    with enough_memory(out_of_memory(matrix, where)):
        return _estimate(matrix, checked_tolerance(rtol, certify, where), certify, where)


def effective_rank(weight: Numbers, *, where: str = "effective_rank") -> float | Array:
    """Effective rank exp(H(p)), p_i = sigma_i / sum_j sigma_j: a float, or an array for a batch.

    The definition of Roy and Vetterli, "The effective rank: a measure of effective dimensionality"
    (EUSIPCO 2007): singular values, not their squares, entropy in nats. Between 1 and the rank. It
    takes the whole spectrum, computed in float64.

    Args:
        weight: as for ``stable_rank``.
        where: names the weight in messages.

    Raises:
        InputError: as for ``stable_rank``.

    Examples:
        >>> round(joma.effective_rank(np.eye(3)), 6)
        3.0
    """
    return _each(dense_weight(weight, where), where, _effective)


def _each(tensor: Tensor, where: str, measure: Callable[[Tensor, str], float]) -> float | Array:
    with enough_memory(out_of_memory(tensor, where)):
        if tensor.ndim == 2:
            return measure(tensor, where)
        result = np.empty(tensor.shape[:-2])
        for index in np.ndindex(result.shape):
            result[index] = measure(tensor[index], f"{where} of matrix {list(index)}")
        return result


def _estimate(matrix: Tensor, tolerance: float, certify: bool, where: str) -> StableRank:
    norm = matrix_norm(matrix, tolerance, certify, where)
    value = max(1.0, (norm.frobenius_norm / norm.value) ** 2)
    lower = (norm.frobenius_norm / norm.upper_bound) ** 2
    return StableRank(value, value - lower, norm.certified, norm)


def _effective(matrix: Tensor, where: str) -> float:
    refuse_unusable(matrix, where)
    matrix = matrix.double()
    matrix = matrix / matrix.abs().max()
    try:
        values = torch.linalg.svdvals(matrix)
    except RuntimeError:  # the divide-and-conquer solver can fail where QR iteration does not
        found = scipy.linalg.svd(matrix.cpu().numpy(), compute_uv=False, lapack_driver="gesvd")
        values = torch.from_numpy(found)
    share = values / values.sum()
    return math.exp(-float(torch.special.xlogy(share, share).sum()))

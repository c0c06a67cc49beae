"""The largest singular value by Golub-Kahan-Lanczos bidiagonalisation.

Golub and Kahan, "Calculating the singular values and pseudo-inverse of a matrix", SIAM J. Numer. Anal.
B 2 (1965). Both bases are fully reorthogonalised (twice, so that float32 suffices): without, copies of
the largest value appear and the residual below no longer tells the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = TypeVar("Array", NDArray[np.float64], Tensor)
"""A NumPy array (float32 or float64) or a torch tensor: what is written here reads the same for both."""

_EARLIEST = 4


@dataclass(frozen=True)
class RitzTriplet(Generic[Array]):
    """What the bidiagonal matrix says about the largest singular value."""

    value: float
    """The largest Ritz value: a lower bound of sigma_1, but for rounding."""
    right: Array
    """(columns,) its right vector, of unit length but for rounding."""
    residual: float
    """|W^T u - value v|, from the recurrence."""
    next_value: float
    """Where sigma_2 is thought to be at most: the second Ritz value plus its residual."""
    steps: int
    """Products with W and with its transpose, each."""


def error_estimate(value: float, next_value: float, residual: float) -> float:
    """Estimated sigma_1 - value of a Ritz value: the residual, or its square over the gap if smaller.

    Some singular value lies within the residual of the Ritz value; that it is the *largest*, and that
    sigma_2 is below ``next_value``, is what makes this an estimate and not a bound. Eigenvalues of a
    symmetric matrix obey the quadratic rule (Kato-Temple); for W W^T it reads
    sigma_1^2 - value^2 <= (sigma_1 residual)^2 / (value^2 - next_value^2).
    """
    gap = value - next_value
    return residual if gap <= 0 else min(residual, residual * (residual / gap))


def largest_triplet(matrix: Array, tolerance: float, *, start: Array) -> RitzTriplet[Array]:
    """Bidiagonalise until the estimated relative error of sigma_1 is at most ``tolerance``.

    Args:
        matrix: (rows, columns), float32 or float64, contiguous (or its transpose).
        tolerance: of sigma_1, relative.
        start: (rows,) not orthogonal to the first left singular vector: random. Its image under the
            transpose begins the right basis, which so never leaves the row space.

    Stops at the latest after min(rows, columns) steps, when the Krylov space is all there is. A matrix
    with NaN or infinities, or whose squares leave the dtype's range, gives a value that is not finite.
    """
    with np.errstate(all="ignore"):  # NaN and overflow are the caller's to see, in the value
        return _bidiagonalise(matrix, tolerance, start)


def _bidiagonalise(matrix: Array, tolerance: float, start: Array) -> RitzTriplet[Array]:
    transpose = matrix.T
    most = min(matrix.shape)
    right_basis: _Basis[Array] = _Basis(matrix.shape[1])
    left_basis: _Basis[Array] = _Basis(matrix.shape[0])
    v = transpose @ start
    length = _norm(v)
    if not 0 < length < math.inf:
        return _nowhere(v)
    v = v / length
    diagonal: list[float] = []
    above: list[float] = []
    check = min(_EARLIEST, most)
    while True:
        right_basis.append(v)
        u = left_basis.remove_from(matrix @ v)
        diagonal.append(_norm(u))
        if not math.isfinite(diagonal[-1]):
            return _nowhere(v)
        u = u / (diagonal[-1] or 1.0)
        left_basis.append(u)
        v = right_basis.remove_from(transpose @ u)
        above.append(_norm(v))
        steps = len(diagonal)
        ended = steps == most or above[-1] <= 1e-14 * max(diagonal)
        if steps >= check or ended:
            left, values, right = np.linalg.svd(_bidiagonal(diagonal, above))
            residuals = above[-1] * np.abs(left[-1])
            second = float(values[1] + residuals[1]) if steps > 1 else 0.0
            error = error_estimate(float(values[0]), second, float(residuals[0]))
            if ended or error <= tolerance * values[0]:
                vector = right_basis.combine(right[0])
                return RitzTriplet(float(values[0]), vector, float(residuals[0]), second, steps)
            # Each look costs steps^3, so later ones are rarer.
            check = steps + max(1, steps // 8)
        v = v / above[-1]


def _nowhere(vector: Array) -> RitzTriplet[Array]:
    return RitzTriplet(math.nan, vector, math.nan, math.nan, 0)


def _norm(vector: Array) -> float:
    return math.sqrt(float(vector @ vector))


def _bidiagonal(diagonal: list[float], above: list[float]) -> NDArray[np.float64]:
    size = len(diagonal)
    matrix = np.zeros((size, size))
    np.fill_diagonal(matrix, diagonal)
    np.fill_diagonal(matrix[:, 1:], above[: size - 1])
    return matrix


class _Basis(Generic[Array]):
    """Orthonormal vectors in the rows of an array that grows."""

    def __init__(self, length: int) -> None:
        self.length, self.count = length, 0
        self.rows: Array | None = None

    def append(self, vector: Array) -> None:
        rows = self.rows
        if rows is None:
            rows = _empty_like(vector, 32, self.length)
        elif self.count == len(rows):
            larger = _empty_like(vector, 2 * self.count, self.length)
            larger[: self.count] = rows
            rows = larger
        rows[self.count] = vector
        self.rows = rows
        self.count += 1

    def remove_from(self, vector: Array) -> Array:
        """The part of ``vector`` orthogonal to the basis (classical Gram-Schmidt, twice)."""
        if self.rows is not None:
            basis = self.rows[: self.count]
            for _ in range(2):
                vector = vector - (basis @ vector) @ basis
        return vector

    def combine(self, weights: NDArray[np.float64]) -> Array:
        assert self.rows is not None
        return like(weights, self.rows) @ self.rows[: self.count]


def like(vector: NDArray[np.float64], array: Array) -> Array:
    """The vector in the library, dtype and device of the array."""
    return vector.astype(array.dtype) if isinstance(array, np.ndarray) else array.new_tensor(vector)


def _empty_like(vector: Array, rows: int, columns: int) -> Array:
    if isinstance(vector, np.ndarray):
        return np.empty((rows, columns), dtype=vector.dtype)
    return vector.new_empty((rows, columns))

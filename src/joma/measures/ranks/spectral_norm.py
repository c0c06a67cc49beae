"""The spectral norm of a weight matrix, with a residual that is verified and a bound on request."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.arguments import number
from joma.core.errors import InputError
from joma.core.memory import enough_memory
from joma.core.threads import by_work
from joma.measures.ranks.golub_kahan import Array, error_estimate, largest_triplet, like
from joma.measures.ranks.matrices import dense_weight, out_of_memory, refuse_unusable
from joma.measures.tensors import Numbers

_FULL_SPECTRUM_ENTRIES = 2**17
_TOLERANCE = 1e-6
_BLOCK_ENTRIES = 2**18
Either: TypeAlias = NDArray[np.float64] | Tensor
_DOUBLE = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class SpectralNorm:
    """sigma_1 of a matrix: what was found, and how far off it may be."""

    value: float
    """Found as |W v| for a unit vector v, in float64: sigma_1 is not below it, but for rounding."""
    upper_bound: float
    """Proven to be above sigma_1 where ``certified``; otherwise ``value`` plus the estimated error."""
    certified: bool
    """Whether a Cholesky factorisation proved the upper bound."""
    residual: float
    """|W^T u - value v| with u = W v / value, in float64: some singular value lies this near."""
    frobenius_norm: float
    """The square root of the sum of all squared entries, summed in float64."""
    steps: int
    """Products with the matrix and its transpose; 0 where the whole spectrum was computed."""


def spectral_norm(weight: Numbers, *, rtol: float | None = None, certify: bool = False) -> float:
    """The largest singular value of a matrix; ``spectral_norm_estimate`` gives its bounds too.

    Examples:
        >>> joma.spectral_norm(np.diag([3.0, 1.0]))
        3.0
    """
    return spectral_norm_estimate(weight, rtol=rtol, certify=certify).value


def spectral_norm_estimate(
    weight: Numbers, *, rtol: float | None = None, certify: bool = False, where: str = "spectral_norm"
) -> SpectralNorm:
    """The largest singular value of a matrix with its bounds.

    Small matrices (to 131,072 entries) get their whole spectrum in float64. Larger ones get
    Golub-Kahan-Lanczos (``joma.measures.ranks.golub_kahan``) from a fixed start, in float32 for weights of
    float32 and less and in float64 for float64 weights or an ``rtol`` below 1e-7; norm and residual are
    then evaluated anew in float64. A small residual proves that *a* singular value is near, not that it
    is the largest: of two that agree to 1e-4 the smaller may be found, at an error of 1e-4.
    ``certify=True`` proves it: (1 + eps) value^2 I - W^T W has a Cholesky factorisation if and only if
    sigma_1^2 is below (1 + eps) value^2; where it has none, eigenvalues of W^T W decide.

    Args:
        weight: (rows, columns); dense, sparse or quantised; any device.
        rtol: relative error of value^2 to reach (the square, since ranks are made of it); default 1e-6.
        certify: prove the upper bound, at several times the cost, min(rows, columns)^2 float64 of memory.
        where: who asks, for messages.

    Raises:
        InputError: not a real matrix, NaN or infinities (and where), or an ``rtol`` that is not between
            1e-12 (1e-9 with ``certify``) and 1.
    """
    tensor = dense_weight(weight, where)
    if tensor.ndim != 2:
        raise InputError(f"{where} needs one matrix, not a batch of shape {tuple(tensor.shape)}.")
    tolerance = checked_tolerance(rtol, certify, where)
    if not bool(tensor.any()):
        return SpectralNorm(0.0, 0.0, True, 0.0, 0.0, 0)
    with enough_memory(out_of_memory(tensor, where)):
        return matrix_norm(tensor, tolerance, certify, where)


def checked_tolerance(rtol: float | None, certify: bool, where: str) -> float:
    """``rtol`` or its default, refused where it cannot be met."""
    tolerance = _TOLERANCE if rtol is None else number(where, "rtol", rtol)
    least = 1e-9 if certify else 1e-12
    if not least <= tolerance < 1:
        raise InputError(f"{where}: rtol = {rtol} is out of reach; give a number from {least:g} to below 1.")
    return tolerance


def matrix_norm(matrix: Tensor, tolerance: float, certify: bool, where: str) -> SpectralNorm:
    """``spectral_norm_estimate`` of a matrix that ``dense_weight`` has prepared."""
    with by_work(matrix.numel()):
        return _matrix_norm(matrix, tolerance, certify, where)


def _matrix_norm(matrix: Tensor, tolerance: float, certify: bool, where: str) -> SpectralNorm:
    if matrix.numel() <= _FULL_SPECTRUM_ENTRIES:
        refuse_unusable(matrix, where)
        matrix, scale = _in_range(matrix.double())
        found = _from_spectrum(matrix)
    else:
        if tolerance < 1e-7:
            matrix = matrix.double()
        scale, attempt = 1.0, _bound_norm(matrix, tolerance)
        if attempt is None:  # NaN, zero, or squares beyond the range of the dtype
            refuse_unusable(matrix, where)
            matrix, scale = _in_range(matrix)
            attempt = _bound_norm(matrix, tolerance)
            if attempt is None:
                raise InputError(f"{where}: the iteration left the finite numbers; report this matrix.")
        found = attempt
    if certify:
        found = _certify(matrix, found, tolerance)
    return SpectralNorm(
        value=found.value * scale,
        upper_bound=found.upper_bound * scale,
        certified=found.certified,
        residual=found.residual * scale,
        frobenius_norm=found.frobenius_norm * scale,
        steps=found.steps,
    )


def _in_range(matrix: Tensor) -> tuple[Tensor, float]:
    """The matrix over a power of two near its largest entry, and that power."""
    scale = 2.0 ** math.floor(math.log2(float(matrix.abs().max())))
    return matrix / scale, scale


def _from_spectrum(matrix: Tensor) -> SpectralNorm:
    values = torch.linalg.svdvals(matrix)
    value = float(values[0])
    # LAPACK's error is a modest multiple of the machine precision times sigma_1.
    error = max(matrix.shape) * _DOUBLE * value
    frobenius = float(values.square().sum().sqrt())
    return SpectralNorm(value, value + error, False, error, frobenius, 0)


def _bound_norm(matrix: Tensor, tolerance: float) -> SpectralNorm | None:
    array = _array(matrix)
    if isinstance(array, np.ndarray):
        return _search_norm(array, tolerance)
    return _search_norm(array, tolerance)


def _search_norm(array: Array, tolerance: float) -> SpectralNorm | None:
    start = np.random.default_rng(0).standard_normal(len(array))
    # The error of the square is twice that of the value; the other half is a margin.
    triplet = largest_triplet(array, tolerance / 4, start=like(start, array))
    safe = 1e-15 if array.dtype in (np.float32, torch.float32) else 1e-140
    if not safe < triplet.value < 1 / safe:
        return None
    with np.errstate(all="ignore"):
        value, residual, frobenius = _verify(array, triplet.right)
    if not math.isfinite(frobenius):
        return None
    error = error_estimate(value, triplet.next_value, residual)
    upper = value + error + sum(array.shape) * _DOUBLE * value
    return SpectralNorm(value, upper, False, residual, frobenius, triplet.steps)


def _array(matrix: Tensor) -> Either:
    """Contiguous; as NumPy on the CPU, whose small products cost a fifth of torch's."""
    matrix = matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()
    return matrix.numpy() if matrix.device.type == "cpu" else matrix


def _verify(array: Array, right: Array) -> tuple[float, float, float]:
    """|W v|, |W^T u - |W v| v| and |W|_F in float64, by blocks of rows."""
    v = _double(right)
    v = v / math.sqrt(float(v @ v))
    square = total = 0.0
    back = 0 * v
    for block in _double_blocks(array):
        image, flat = block @ v, block.reshape(-1)
        square += float(image @ image)
        total += float(flat @ flat)
        back = back + image @ block
    value = math.sqrt(square)
    left = back / value - value * v
    return value, math.sqrt(float(left @ left)), math.sqrt(total)


def _double(array: Array) -> Array:
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def _double_blocks(array: Array) -> Iterator[Array]:
    """Rows in blocks that stay in the cache, as float64."""
    rows = max(1, _BLOCK_ENTRIES // array.shape[1])
    return (_double(array[first : first + rows]) for first in range(0, array.shape[0], rows))


def _rounding(matrix: Tensor) -> float:
    """Relative rounding of a Gram matrix, its Cholesky factor and |W v| in float64, generously."""
    rows, columns = matrix.shape
    small = min(rows, columns)
    # Higham, Accuracy and Stability (2002), Secs. 3.5 and 10.1: |dG| <= rows eps |W|_F^2 with
    # |W|_F^2 <= small sigma_1^2, and |dA| <= (small + 1) eps trace(A) with trace(A) <= small sigma_1^2.
    return 2 * (rows + columns + 2) * small * _DOUBLE


def _certify(matrix: Tensor, found: SpectralNorm, tolerance: float) -> SpectralNorm:
    gram = _gram(_array(matrix))
    rounding = _rounding(matrix)
    # Room of the tolerance asked for, whatever the value's own (much smaller) error.
    bound = found.value**2 * (1 + tolerance)
    value = found.value
    if not _below(gram, bound, rounding):
        value = max(value, math.sqrt(_largest_eigenvalue(gram)))
        bound = value**2 * (1 + tolerance)
        if not _below(gram, bound, rounding):
            raise InputError(
                f"rtol = {tolerance:g} cannot be certified for a {tuple(matrix.shape)} matrix in float64, "
                f"whose rounding is up to {rounding:.1e}; ask for a larger rtol."
            )
    return SpectralNorm(
        value=value,
        upper_bound=math.sqrt(bound),
        certified=True,
        residual=found.residual if value == found.value else math.sqrt(rounding) * value,
        frobenius_norm=found.frobenius_norm,
        steps=found.steps,
    )


def _gram(array: Either) -> Either:
    """W^T W or W W^T in float64, whichever is smaller; from NumPy only its upper triangle is filled."""
    if array.shape[0] < array.shape[1]:
        array = array.T
    size = array.shape[1]
    if not isinstance(array, np.ndarray):
        total = array.new_zeros((size, size), dtype=torch.float64)
        for part in _double_blocks(array):
            total.addmm_(part.T, part)
        return total
    gram = np.zeros((size, size), order="F")
    rows = max(size, _BLOCK_ENTRIES // size)
    for first in range(0, array.shape[0], rows):
        block = np.asarray(array[first : first + rows], dtype=np.float64, order="C")
        # The transpose of a C-ordered block is what BLAS takes without a copy.
        gram = scipy.linalg.blas.dsyrk(1.0, block.T, beta=1.0, c=gram, overwrite_c=1)
    return gram


def _below(gram: Either, bound: float, rounding: float) -> bool:
    """Whether the Gram matrix's largest eigenvalue is proven to be below ``bound``."""
    if not isinstance(gram, np.ndarray):
        on_device = -gram
        on_device.diagonal().add_(bound * (1 - rounding))
        return int(torch.linalg.cholesky_ex(on_device).info) == 0
    shifted = -gram
    shifted[np.diag_indices_from(shifted)] += bound * (1 - rounding)
    _, info = scipy.linalg.lapack.dpotrf(shifted, lower=0, clean=0, overwrite_a=1)
    return bool(info == 0)


def _largest_eigenvalue(gram: Either) -> float:
    if not isinstance(gram, np.ndarray):
        return float(torch.linalg.eigvalsh(gram)[-1])
    last = len(gram) - 1
    values = scipy.linalg.eigh(gram, lower=False, eigvals_only=True, subset_by_index=[last, last])
    return float(values[0])

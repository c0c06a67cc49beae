"""Weights as plain matrices: dense, floating point, finite, on the device they were on."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.core.memory import enough_memory
from joma.measures.tensors import Numbers, dense


def dense_weight(weight: Numbers, where: str) -> Tensor:
    """A weight, or a batch of them, as a dense float32 or float64 tensor of shape (..., rows, columns).

    Accepts torch tensors (dense, sparse, quantised, sharded over a device mesh), NumPy arrays and SciPy
    sparse matrices. Half precision and float8 become float32, which holds them exactly.

    Args:
        weight: the matrix or batch of matrices.
        where: who asks, for the messages.

    Raises:
        InputError: not a matrix, no entries, no values (a tensor of the meta device, a masked array),
            integers (packed or unscaled quantised values) or complex numbers.
    """
    with enough_memory(f"in {where} on unpacking a weight; move it to the CPU, or give one at a time."):
        tensor = dense(where, "the weight", weight).detach()
    if tensor.numel() == 0 and hasattr(weight, "ds_shape"):
        raise InputError(
            f"{where}: this parameter is empty here because ZeRO-3 keeps it elsewhere (its shape is "
            f"{tuple(weight.ds_shape)}); gather it first (deepspeed.zero.GatheredParameters)."
        )
    if tensor.ndim < 2 or tensor.numel() == 0:
        raise InputError(
            f"{where} needs a matrix with entries, not a tensor of shape {tuple(tensor.shape)}; "
            "give the 2-D weight (or a batch of them)."
        )
    if not tensor.is_floating_point():
        raise InputError(
            f"{where}: a weight of type {tensor.dtype} is not real floating point; dequantise it first "
            "(packed integers without their scales are not the weight)."
        )
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    with enough_memory(out_of_memory(tensor, where)):
        return tensor.float()


def out_of_memory(tensor: Tensor, where: str) -> str:
    """What to say, after "out of memory", of a weight that does not fit twice."""
    return (
        f"in {where} of a weight of shape {tuple(tensor.shape)} on {tensor.device}; its computation takes "
        "float64 copies: give one matrix at a time, move it to the CPU, or close what else uses memory."
    )


def refuse_unusable(matrix: Tensor, where: str) -> None:
    """Say where a matrix holds NaN or infinities, or that it is zero.

    Raises:
        InputError: with the first place and the number of such entries, or because the matrix is zero.
    """
    bad = ~torch.isfinite(matrix)
    count = int(bad.sum())
    if count:
        row, column = (int(index) for index in bad.nonzero()[0])
        kind = "NaN" if bool(torch.isnan(matrix[row, column])) else "an infinity"
        raise InputError(
            f"{where}: the {matrix.shape[0]} x {matrix.shape[1]} weight holds NaN or infinities in {count} "
            f"of {matrix.numel()} entries, the first {kind} at row {row}, column {column}; its singular "
            "values are undefined, so mend or leave out this weight."
        )
    if not bool(matrix.any()):
        raise InputError(f"{where}: the weight matrix is zero; its rank measures are undefined.")

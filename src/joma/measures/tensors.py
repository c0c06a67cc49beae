"""What a measure is given, as one dense tensor of plain numbers."""

from __future__ import annotations

import importlib
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from joma.core.arguments import plain
from joma.core.errors import InputError


class SparseMatrix(Protocol):
    """A matrix of SciPy that stores its entries sparsely."""

    def toarray(self) -> NDArray[np.generic]:
        """The same matrix with its zeros."""
        ...


Numbers: TypeAlias = Tensor | ArrayLike | SparseMatrix
"""What a measure may be given: a tensor, an array, nested lists, a sparse matrix."""


def dense(where: str, name: str, value: Numbers) -> Tensor:
    """A dense tensor, of the dtype (float64 for longer ones), device and gradient that it had.

    Takes sparse, quantised (torch's, torchao's, bitsandbytes') and distributed tensors, NumPy arrays of any
    strides and byte order, SciPy's sparse matrices and nested lists.

    Raises:
        InputError: no array, a tensor of the meta device, or an array that is masked somewhere.
    """
    if not isinstance(value, Tensor):
        return _from_numpy(where, name, value)
    if value.is_meta:
        raise InputError(f"{where}: {name} is a tensor of the meta device, without values; load it first.")
    tensor, four_bit, rows = value, getattr(value, "quant_state", None), getattr(value, "SCB", None)
    if hasattr(tensor, "full_tensor"):  # DTensor, of FSDP2 and tensor parallelism
        tensor = tensor.full_tensor()
    if four_bit is not None:  # bitsandbytes
        restore = importlib.import_module("bitsandbytes.functional").dequantize_4bit
        tensor = torch.as_tensor(restore(tensor, four_bit))
    elif isinstance(rows, Tensor):  # bitsandbytes' LLM.int8: rows times 127 over their largest entry
        tensor = tensor.float() * rows.float()[:, None] / 127
    elif tensor.is_quantized or type(tensor).dequantize is not Tensor.dequantize:  # torchao and its like
        tensor = torch.as_tensor(tensor.dequantize())
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _from_numpy(where: str, name: str, value: ArrayLike | SparseMatrix) -> Tensor:
    try:
        array = plain(where, name, value.toarray() if hasattr(value, "toarray") else value)
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # more than torch has
            array = array.astype(np.float64)
        return torch.as_tensor(np.ascontiguousarray(array) if array.ndim else array)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shown = (
            f"{value!r:.60}" if isinstance(value, list | tuple | str) else f"of type {type(value).__name__}"
        )
        raise InputError(
            f"{where}: {name} ({shown}) is not an array of numbers; give a tensor, a NumPy array or a list."
        ) from None

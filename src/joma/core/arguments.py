"""What joma accepts as an argument: numbers that are numbers, shapes that fit, or InputError in a sentence.

Each function takes where it is called from and the argument's name first, because both belong into the
message. Arrays come back in float64.
"""

from __future__ import annotations

import math
import operator
import sys
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.core.errors import DivergenceError, InputError

Array = NDArray[np.float64]


class NotFiniteError(InputError, DivergenceError):
    """A state that is not finite: to a caller a bad argument, to a solver the flow's divergence."""


# Whole numbers up to here are exact as floats.
_LARGEST_WHOLE = 2**53


def numbers(where: str, name: str, value: ArrayLike) -> Array:
    """An array of real numbers, of any shape; NaN and infinity pass. Tensors lose device and gradient."""
    try:
        array = plain(where, name, value)
        if array.dtype.kind == "O":
            array = np.array([float(one) for one in array.flat]).reshape(array.shape)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError):
        array = np.asarray("")
    if array.dtype.kind not in "biuf":
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise InputError(f"{where}: {name} = {shown} is not an array of real numbers; give one.")
    return np.asarray(array, dtype=np.float64)


def plain(where: str, name: str, value: ArrayLike) -> NDArray[np.generic]:
    """A NumPy array in the machine's byte order; NumPy's own errors where there is none.

    Raises:
        InputError: masked entries, or a tensor of the meta device, which holds no values.
    """
    torch = sys.modules.get("torch")  # who gives a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.is_meta:
            raise InputError(
                f"{where}: {name} is a tensor of the meta device, without values; load it first."
            )
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if tensor.dtype.is_floating_point and tensor.dtype != torch.float64:
            tensor = tensor.float()
        value = tensor.cpu().numpy()
    elif torch is not None and isinstance(value, list | tuple):  # losses of a loop, each a tensor still
        value = [plain(where, name, one) if isinstance(one, torch.Tensor) else one for one in value]
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            count = int(np.ma.getmaskarray(value).sum())
            raise InputError(f"{where}: {name} is masked in {count} entries; fill or drop them.")
        value = value.data
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def finite(where: str, name: str, value: ArrayLike) -> Array:
    """An array of finite numbers, of any shape."""
    array = numbers(where, name, value)
    if not np.isfinite(array).all():
        first = array[~np.isfinite(array)].flat[0]
        raise InputError(f"{where}: {name} holds {first}, which is not finite; remove it.")
    return array


def broadcast(where: str, **values: ArrayLike) -> tuple[Array, ...]:
    """Arrays of finite numbers, brought to their common shape."""
    arrays = {name: finite(where, name, value) for name, value in values.items()}
    try:
        return tuple(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(
            f"{where}: the shapes {shapes} do not broadcast; give one number or arrays alike."
        ) from None


def spread(where: str, name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Finite numbers brought to a given shape: one for all, or what broadcasts to it."""
    array = finite(where, name, value)
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(
            f"{where}: {name} has shape {array.shape}; give one finite number or shape {shape}."
        ) from None


def number(where: str, name: str, value: ArrayLike) -> float:
    """One finite number."""
    array = numbers(where, name, value)
    if array.ndim != 0 or not math.isfinite(array):
        raise InputError(f"{where}: {name} = {value!r}; give one finite number.")
    return float(array)


def positive(where: str, name: str, value: ArrayLike, *, zero: bool = False) -> float:
    """One finite number above 0 (with ``zero``, at least 0)."""
    given = number(where, name, value)
    if not (given > 0 or (zero and given == 0)):
        kind = "number of at least 0" if zero else "positive number"
        raise InputError(f"{where}: {name} = {given!r} must be a {kind}.")
    return given


def whole(
    where: str, name: str, value: SupportsIndex, least: int = 1, most: int | None = _LARGEST_WHOLE
) -> int:
    """One whole number from ``least`` to ``most``; 2.0 and True are none."""
    try:
        given = operator.index(value)
    except TypeError:
        given = least - 1
    if given < least or isinstance(value, bool) or (most is not None and given > most):
        kind = "positive whole number" if least == 1 else "whole number"
        limit = f"at least {least}" if most is None else f"at least {least} and at most {most}"
        raise InputError(f"{where}: {name} = {value!r} must be a {kind}, {limit}.")
    return given


def wholes(where: str, name: str, values: ArrayLike, of: str) -> NDArray[np.int64]:
    """An array of whole numbers ``of`` something; 2.0 is not one."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.array(np.nan)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{where}: {name} = {values!r:.80} must be a whole number of {of}.")
    return array.astype(np.int64)


def within_floats(where: str, value: ArrayLike, advice: str) -> Array:
    """A result, unless it has left the finite numbers (compute it where NumPy's warnings are off)."""
    array = np.asarray(value, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"{where}: the result is beyond float64; {advice}.")
    return array


def check_broadcast(where: str, **shapes: tuple[int, ...]) -> None:
    """Refuse shapes that do not broadcast."""
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        raise InputError(
            f"{where}: {_list_shapes(shapes)} do not broadcast; make their axes agree."
        ) from None


def arrays(where: str, **given: tuple[ArrayLike, str]) -> list[Array]:
    """The arrays in float64: finite, and of shapes that fit the patterns, such as ``"... K M"``.

    An axis that is named in two patterns has one length, and the leading axes ``...`` broadcast.
    """
    found = [finite(where, name, values) for name, (values, _) in given.items()]
    sizes: dict[str, int] = {}
    leading = []
    fits = True
    for array, (_, pattern) in zip(found, given.values(), strict=True):
        axes = pattern.split()
        named = axes[1:] if axes[0] == "..." else axes
        batch = array.ndim - len(named)
        if batch < 0 or (batch and named is axes):
            fits = False
            continue
        for axis, size in zip(named, array.shape[batch:], strict=True):
            if size == 0 or sizes.setdefault(axis, size) != size:
                fits = False
        leading.append(array.shape[:batch])
    if len(set(leading)) > 1:
        try:
            np.broadcast_shapes(*leading)
        except ValueError:
            fits = False
    if not fits:
        shapes = _list_shapes({name: array.shape for name, array in zip(given, found, strict=True)})
        wanted = ", ".join(f"({pattern.replace(' ', ', ')})" for _, pattern in given.values())
        raise InputError(f"{where}: {shapes} do not match; give {wanted}.")
    return found


def _list_shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())

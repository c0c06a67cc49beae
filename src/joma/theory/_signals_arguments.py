"""What the formula modules ask of their arguments, told in one sentence where it is not so."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joma.errors import DivergenceError, InputError

Array = NDArray[np.float64]


class NotFiniteError(InputError, DivergenceError):
    """A state that is not finite: to a caller a bad argument, to a solver the flow's divergence."""


def real(values: ArrayLike, name: str, where: str) -> Array:
    """``values`` as float64, finite or not; anything that is no array of numbers is refused."""
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return values
    try:
        if not np.iscomplexobj(values):
            return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{where}: {name} = {values!r:.80} is not an array of real numbers; give floats.")


def finite(values: ArrayLike, name: str, where: str) -> Array:
    """``values`` as float64, every one of them finite."""
    array = real(values, name, where)
    if not np.isfinite(array).all():
        worst = array[~np.isfinite(array)].flat[0]
        raise InputError(f"{where}: {name} holds {worst}, which is not finite; give finite numbers.")
    return array


def number(value: ArrayLike, name: str, where: str) -> float:
    """One finite number."""
    array = finite(value, name, where)
    if array.ndim:
        raise InputError(f"{where}: {name} has shape {array.shape}; give one number.")
    return float(array)


def positive(value: ArrayLike, name: str, where: str, *, zero: bool = False) -> float:
    """One finite number above 0 (with ``zero``, at least 0)."""
    array = real(value, name, where)
    if array.ndim or not (np.isfinite(array) and (array > 0 or (zero and array == 0))):
        least = "at least 0" if zero else "above 0"
        raise InputError(f"{where}: {name} = {value!r:.80} must be a finite number {least}.")
    return float(array)


def whole(value: object, name: str, where: str, *, least: int) -> int:
    """One whole number, at least ``least``; 2.0 is not one."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # refusing what has no index is its purpose
    except TypeError:
        found = least - 1
    if found < least or isinstance(value, bool):
        raise InputError(f"{where}: {name} = {value!r:.80} must be a whole number of at least {least}.")
    return found


def wholes(values: ArrayLike, name: str, where: str, of: str) -> NDArray[np.int64]:
    """An array of whole numbers ``of`` something; 2.0 is not one."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.array(np.nan)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{where}: {name} = {values!r:.80} must be a whole number of {of}.")
    return array.astype(np.int64)


def matching(where: str, **shapes: tuple[int, ...]) -> None:
    """Refuse shapes that do not broadcast."""
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        raise InputError(f"{where}: {_listed(shapes)} do not broadcast; make their axes agree.") from None


def arrays(where: str, **given: tuple[ArrayLike, str]) -> list[Array]:
    """The arrays in float64: finite, and of shapes that fit the patterns, such as ``"... K M"``.

    An axis that is named in two patterns has one length, and the leading axes ``...`` broadcast.
    """
    found = [finite(values, name, where) for name, (values, _) in given.items()]
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
        shapes = _listed({name: array.shape for name, array in zip(given, found, strict=True)})
        wanted = ", ".join(f"({pattern.replace(' ', ', ')})" for _, pattern in given.values())
        raise InputError(f"{where}: {shapes} do not match; give {wanted}.")
    return found


def class_table(
    class_probabilities: ArrayLike, zero_given_class: ArrayLike, where: str
) -> tuple[Array, Array]:
    """P[y_0 = k] and P[y_1 = 0 | y_0 = k], both (D,): probabilities, the first of sum one."""
    prior = finite(class_probabilities, "class_probabilities", where)
    zero = real(zero_given_class, "zero_given_class", where)
    if prior.ndim != 1 or prior.shape != zero.shape:
        raise InputError(
            f"{where}: class probabilities of shape {prior.shape}, P[y_1 = 0 | y_0] of shape {zero.shape}: "
            "give one number per class in each."
        )
    if not (np.all(prior >= 0) and abs(prior.sum() - 1) <= 1e-9):
        raise InputError(
            f"{where}: class probabilities {prior.tolist()} sum to {prior.sum():.12g}; "
            "give non-negative numbers that sum to one."
        )
    if not np.all((zero >= 0) & (zero <= 1)):
        raise InputError(f"{where}: P[y_1 = 0 | y_0 = k] = {zero.tolist()} must lie between 0 and 1.")
    return prior, zero


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())

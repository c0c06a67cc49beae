"""Arrays of the theory that belong together: shapes that fit each other, or InputError in one sentence."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from joma.arguments import Array, finite
from joma.errors import InputError


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
        shapes = _listed({name: array.shape for name, array in zip(given, found, strict=True)})
        wanted = ", ".join(f"({pattern.replace(' ', ', ')})" for _, pattern in given.values())
        raise InputError(f"{where}: {shapes} do not match; give {wanted}.")
    return found


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())

"""What stands beside a weight and, by its shape, may change it, though its name tells nothing."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from joma.checkpoints.families.names import canonical
from joma.checkpoints.formats.shard import TensorEntry
from joma.checkpoints.scales import is_quantised, of_something_else, spread
from joma.core.errors import InputError

_Shape = tuple[int, ...]


def find_unexplained(
    entries: Mapping[str, TensorEntry], loose: Iterable[str], blocks: tuple[int, ...] | None
) -> dict[str, str]:
    """Of each weight that may be changed by what stands beside it, what that is: half a sentence.

    A quantised weight may have its scale in any tensor that bears its module's name and has a scale's shape;
    a weight may have low-rank factors in two matrices of its module whose product has its shape.

    Args:
        entries: all that is stored.
        loose: names of what is no part of another weight by its name.
        blocks: (rows, columns) of a block that shares a scale, where the configuration states it.
    """
    loose = list(loose)
    found: dict[str, str] = {}
    around: dict[str, list[str]] = defaultdict(list)
    if any(is_quantised(entries[name].dtype) and len(entries[name].shape) > 1 for name in loose):
        for name in loose:
            parts = canonical(name).split(".")
            for depth in range(len(parts)):
                around[".".join(parts[:depth])].append(name)
    inside: dict[str, list[str]] = defaultdict(list)
    for name in loose:
        if len(entries[name].shape) == 2:
            inside[canonical(name).rpartition(".")[0]].append(name)
    for name in loose:
        entry, whole = entries[name], canonical(name)
        module = whole.removesuffix(".weight")
        if len(entry.shape) > 1 and is_quantised(entry.dtype):
            parent, _, leaf = module.rpartition(".")
            bears = re.compile(rf"(?<![A-Za-z0-9]){re.escape(leaf)}(?![A-Za-z0-9])")
            for other in around[parent]:
                rest = canonical(other)[len(parent) :]
                own = other != name and bears.search(rest)
                if own and _may_scale(bears.sub("", rest, 1), entries[other], entry, blocks):
                    found[name] = f"it is quantised, and what {other!r} beside it does to it is not known"
                    break
        held = inside[module] if whole.endswith(".weight") else []
        if len(held) > 2 and (two := _factors(name, held, entries)):
            first, second = map(repr, two)
            found[name] = (
                f"what {first} and {second} beside it, whose product has its shape, add is not known"
            )
    return found


def _may_scale(rest: str, other: TensorEntry, weight: TensorEntry, blocks: tuple[int, ...] | None) -> bool:
    """Whether a tensor has the shape and type of a scale and is none by a name that is understood."""
    if of_something_else(rest) or rest.endswith(("norm", "norm.weight")):
        return False
    if other.shape == weight.shape or 0 in other.shape:
        return False
    if is_quantised(other.dtype) and not other.dtype.endswith(("E8M0", "e8m0fnu")):
        return False
    if math.prod(other.shape) == 1:
        return True
    try:
        spread(other.shape, weight.shape, blocks)
    except InputError as error:
        return "is not known" in str(error) or "several ways" in str(error)
    return True


def _factors(name: str, inside: list[str], entries: Mapping[str, TensorEntry]) -> tuple[str, str] | None:
    """Two matrices (r, inputs) and (outputs, r), or both transposed, r below either side of the weight."""
    rows, columns = entries[name].shape
    others = [one for one in inside if one != name]
    for down in others:
        for up in others:
            (a, b), (x, y) = entries[down].shape, entries[up].shape
            if down != up and a == y < min(rows, columns) and (x, b) in ((rows, columns), (columns, rows)):
                return down, up
    return None

"""A distributed checkpoint of PyTorch as one file of weights: each tensor is gathered when it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from joma.checkpoints.formats.distributed.archive import find_archived
from joma.checkpoints.formats.distributed.metadata import METADATA, Chunk, Shape, StoredTensor, read_metadata
from joma.checkpoints.formats.readers import TYPE_NAMES
from joma.checkpoints.formats.shard import Room, Shard, TensorEntry
from joma.checkpoints.formats.state_dicts import state_of
from joma.core.errors import InputError

_DEPTH = 3
"""Parts of a name at its beginning among which an optimizer's state says what it is."""


class DistributedShard(Shard):
    """All files of a folder of ``torch.distributed.checkpoint``; nothing that they name is run.

    The weights are looked for as in a training state (``joma.checkpoints.formats.state_dicts``): under a
    usual key, or at the top; the optimizer's state and copies of the weights are named.

    Args:
        folder: where ``.metadata`` and the ``.distcp`` files lie.

    Raises:
        InputError: metadata that are damaged, hostile or newer, or no tensors there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / METADATA
        metadata = read_metadata(folder)
        names, self.asides = _weights(metadata.tensors, metadata.paths)
        if not names:
            held = "the state of an optimizer alone" if self.asides else "no tensors by name"
            raise InputError(f"{folder} holds {held}; give the folder of the model's weights.")
        self.stored: dict[str, StoredTensor] = {name: metadata.tensors[full] for name, full in names.items()}
        _refuse_missing(folder, self.stored)
        self.entries: Mapping[str, TensorEntry] = {
            name: _entry(folder, name, stored) for name, stored in self.stored.items()
        }

    @property
    def files(self) -> list[Path]:
        """The metadata and the files that hold the weights."""
        named = {chunk.file for stored in self.stored.values() for chunk in stored.chunks}
        return [self.path, *(file for one in sorted(named) if (file := self.path.with_name(one)).is_file())]

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """One tensor, gathered from its chunks, in ``room`` where there is one."""
        stored = self.stored[name]
        return self.read_box(name, (0,) * len(stored.shape), stored.shape, room)

    def read_box(self, name: str, offsets: Shape, sizes: Shape, room: Room | None = None) -> Tensor:
        """A part of one tensor: of each axis so many entries from this one on."""
        stored = self.stored[name]
        if problem := _problem(stored):
            raise InputError(f"{self.path.parent}: {name!r} cannot be read: {problem}.")
        size = math.prod(sizes) * stored.dtype.itemsize
        tensor = (room or Room()).take(size).view(stored.dtype).reshape(sizes)
        for chunk in stored.chunks:
            self._copy(stored, chunk, offsets, tensor)
        return tensor

    def _copy(self, stored: StoredTensor, chunk: Chunk, offsets: Shape, into: Tensor) -> None:
        """Copy what a chunk holds of a part of its tensor."""
        first = [max(at, own) for at, own in zip(offsets, chunk.offsets, strict=True)]
        last = [
            min(at + size, own + mine)
            for at, size, own, mine in zip(offsets, into.shape, chunk.offsets, chunk.sizes, strict=True)
        ]
        if any(begin >= end for begin, end in zip(first, last, strict=True)):
            return
        path = self.path.with_name(chunk.file)
        archived = find_archived(path, chunk.begin, chunk.length, stored.name)
        told = archived.told
        if told.dtype != stored.dtype or _plain(told.shape) != _plain(chunk.sizes):
            raise InputError(
                f"{path}: a part of {stored.name!r} has shape {told.shape} and type {told.dtype}, and "
                f"{METADATA} says {chunk.sizes} and {stored.dtype}; do not trust this checkpoint."
            )
        target = into[tuple(slice(b - at, e - at) for b, e, at in zip(first, last, offsets, strict=True))]
        rows = (first[0] - chunk.offsets[0], last[0] - chunk.offsets[0]) if first else (0, 1)
        across = tuple(slice(b - own, e - own) for b, e, own in zip(first, last, chunk.offsets, strict=True))[
            1:
        ]
        read = (rows[1] - rows[0], *chunk.sizes[1:]) if first else ()
        if told.shape != chunk.sizes:  # saved without axes of length one
            archived = archived.with_shape(chunk.sizes)
        if target.is_contiguous() and tuple(target.shape) == read:
            archived.read_rows(*rows, target)
            return
        part = torch.empty(read, dtype=stored.dtype)
        archived.read_rows(*rows, part)
        target.copy_(part[(slice(None), *across)])


def _plain(shape: Shape) -> Shape:
    return tuple(side for side in shape if side != 1)


def _entry(folder: Path, name: str, stored: StoredTensor) -> TensorEntry:
    kind = TYPE_NAMES.get(stored.dtype, str(stored.dtype).removeprefix("torch."))
    file = folder / (stored.chunks[0].file if stored.chunks else METADATA)
    return TensorEntry(name, stored.shape, kind, file, _problem(stored))


def _problem(stored: StoredTensor) -> str:
    known = "" if stored.dtype in TYPE_NAMES else f"its type {stored.dtype} is not known here"
    return stored.problem or known


def _refuse_missing(folder: Path, stored: Mapping[str, StoredTensor]) -> None:
    """Raises InputError where no matrix is whole because files are missing."""
    matrices = [one for one in stored.values() if len(one.shape) > 1] or list(stored.values())
    if not all(one.problem for one in matrices):
        return
    named = {chunk.file for one in matrices for chunk in one.chunks}
    missing = sorted(file for file in named if not (folder / file).is_file())
    if missing:
        some = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
        raise InputError(
            f"{folder} lacks {some} ({len(missing)} of the {len(named)} files that hold its weights), and no "
            "matrix is whole without; copy the files of all ranks."
        )
    raise InputError(f"{folder}: no matrix can be read: of {matrices[0].name!r}, {matrices[0].problem}.")


def _weights(
    tensors: Mapping[str, StoredTensor], paths: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """The weights' names -> their full names; and of what else there is: where, why not, how many entries."""
    tree: dict[str, object] = {}
    full: dict[int, str] = {}
    training: dict[str, list[int]] = {}
    for name, stored in tensors.items():
        path = paths.get(name) or (name,)
        if where := _optimizer_in(path):
            training.setdefault(where, []).append(math.prod(stored.shape))
            continue
        inner = tree
        for key in path[:-1]:
            below = inner.setdefault(key, {})
            inner = below if isinstance(below, dict) else {}
        tensor = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
        inner[path[-1]] = tensor
        full[id(tensor)] = name
    found, asides = state_of(tree)
    for where, sizes in training.items():
        reason = f"it is the state of an optimizer, not of the model: {len(sizes):,} tensors"
        asides = {**asides, where: (reason, sum(sizes))}
    return {name: full[id(tensor)] for name, tensor in found.items()}, asides


def _optimizer_in(path: tuple[str, ...]) -> str:
    """The beginning of a name that says that an optimizer's state begins there, or nothing."""
    parts = ".".join(path).split(".")[:_DEPTH]
    at = next((i for i, part in enumerate(parts) if "optim" in part.lower()), None)
    return "" if at is None else ".".join(parts[: at + 1])

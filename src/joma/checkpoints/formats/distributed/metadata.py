"""What the file ``.metadata`` of a distributed checkpoint says: tensors, their chunks, and where they are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from joma.checkpoints.formats.distributed.pickles import Record, UnknownClassError, read_metadata_pickle
from joma.checkpoints.formats.unpickling import HostileError
from joma.core.errors import InputError, abbreviate, first_line
from joma.core.files import read_bytes

METADATA = ".metadata"
SUFFIX = ".distcp"
_LONGEST = 512 << 20
"""Bytes of the metadata; a chunk takes about 150."""
_VERSION = 1
"""The largest major version of the metadata that is known here."""
_LARGEST = 1 << 62
"""Bytes that no tensor has."""
_MOST_CELLS = 1 << 20
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor, and the range of a file in which it lies as an archive of its own."""

    offsets: Shape
    sizes: Shape
    file: str
    begin: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a distributed checkpoint."""

    name: str
    dtype: torch.dtype
    shape: Shape
    chunks: tuple[Chunk, ...]
    problem: str = ""
    """Why it cannot be read: half a sentence."""


@dataclass(frozen=True)
class Metadata:
    """What lies in a folder."""

    tensors: dict[str, StoredTensor]
    paths: dict[str, tuple[str, ...]]
    """The keys of the nested mapping that was saved, of those tensors of which they are told."""


def read_metadata(folder: Path) -> Metadata:
    """Read and check the metadata of a folder; the files that it names are looked at, not read.

    A tensor that is not whole (a file is missing, chunks do not tile it) has a ``problem``; metadata that
    contradict themselves or lead out of the folder are refused as a whole.

    Raises:
        InputError: they are refused.
    """
    path = folder / METADATA
    content = read_bytes(path, _LONGEST)
    try:
        state: Any = read_metadata_pickle(content).state
    except HostileError as error:
        raise InputError(
            f"{path} would run code when it is unpickled ({error}) and was refused unread; do not trust "
            "this checkpoint."
        ) from error
    except UnknownClassError as error:
        raise InputError(
            f"{path} names {error}, which the metadata of PyTorch's checkpoints known to joma do not; was it "
            "written by a newer version? Save it again as safetensors."
        ) from error
    except Exception as error:  # whatever the program of a malformed pickle comes to
        raise _damage(path, first_line(error)) from error
    _check_version(path, state.get("version"))
    found, ranges = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(found, dict) or not isinstance(ranges, dict):
        raise _damage(path, "it lists no tensors")
    sizes = _file_sizes(folder)
    placed = _ranges(path, ranges)
    tensors = {
        name: _tensor(path, name, record, placed.get(name, {}), sizes)
        for name, record in found.items()
        if isinstance(name, str) and isinstance(record, Record) and record.kind == "tensor"
    }
    return Metadata(tensors, _paths(state.get("planner_data")))


def _damage(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is damaged or not what its name says ({reason}); copy or save it again.")


def _check_version(path: Path, version: object) -> None:
    told = re.match(r"(\d{1,9})\b", version) if isinstance(version, str) else None
    if (version is not None and told is None) or (told and int(told[1]) > _VERSION):
        raise InputError(
            f"{path} has version {abbreviate(version)}, and joma reads up to {_VERSION}; take a newer joma, "
            "or save the weights again as safetensors."
        )


def _file_sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}


def _shape(value: object) -> Shape | None:
    if not isinstance(value, tuple | list) or len(value) > 64:
        return None
    if not all(type(side) is int and 0 <= side < _LARGEST for side in value):
        return None
    return tuple(value)


@dataclass(frozen=True)
class _Range:
    file: str
    begin: int
    length: int
    transformed: bool


_Ranges = dict[Shape | None, _Range]
"""By the offsets of the chunk that lies there."""


def _ranges(path: Path, ranges: Mapping[Any, Any]) -> dict[str, _Ranges]:
    """Where the chunks of each tensor lie."""
    found: dict[str, _Ranges] = {}
    for index, record in ranges.items():
        if not isinstance(index, Record) or index.kind != "index":
            raise _damage(path, "a place belongs to no tensor")
        if not isinstance(record, Record) or record.kind != "range":
            raise _damage(path, "the place of a chunk is none")
        name, at = index.field("fqn"), index.field("offset")
        file, begin, length = (record.field(key) for key in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not isinstance(file, str):
            raise _damage(path, "a chunk without a name or a file")
        if Path(file).name != file or "\\" in file or "\0" in file:
            raise InputError(
                f"{path} puts {abbreviate(name)} into {abbreviate(file)}, which is outside its folder; do "
                "not trust this checkpoint."
            )
        if type(begin) is not int or type(length) is not int or min(begin, length) < 0:
            raise _damage(path, f"{abbreviate(name)} lies in the bytes from {begin!r}, {length!r} of them")
        transformed = bool(record.field("transform_descriptors"))
        found.setdefault(name, {})[_shape(at)] = _Range(file, begin, length, transformed)
    return found


def _tensor(path: Path, name: str, record: Record, placed: _Ranges, sizes: Mapping[str, int]) -> StoredTensor:
    properties, shape, listed = (record.field(key) for key in ("properties", "size", "chunks"))
    told = properties.state if isinstance(properties, Record) else None
    dtype = told[0] if isinstance(told, tuple) and told else None
    dtype = told.get("dtype") if isinstance(told, dict) else dtype
    shape = _shape(shape)
    if shape is None or not isinstance(dtype, torch.dtype) or not isinstance(listed, list):
        raise _damage(path, f"what it says of {abbreviate(name)} is malformed")
    if math.prod(shape) * dtype.itemsize >= _LARGEST:
        raise _damage(path, f"{abbreviate(name)} of shape {shape} is larger than any tensor")
    chunks: list[Chunk] = []
    problems: list[str] = []
    for offsets, own in _boxes(path, name, shape, listed):
        place = placed.get(offsets) or (placed.get(None) if len(listed) == 1 else None)
        if place is None:
            problems.append("no file is named for a part of it")
            continue
        _check_place(path, name, place, math.prod(own) * dtype.itemsize, sizes)
        if place.transformed:
            problems.append("its parts were transformed (compressed?) as they were written")
        if place.file not in sizes:
            problems.append(f"a part of it lies in {place.file}, which is missing")
        chunks.append(Chunk(offsets, own, place.file, place.begin, place.length))
    problem = next(iter(problems), "") or _gaps(shape, chunks)
    if not problem and math.prod(shape) * dtype.itemsize > sum(
        sizes[one] for one in {c.file for c in chunks}
    ):
        raise _damage(path, f"{abbreviate(name)} of shape {shape} is larger than its files")
    return StoredTensor(name, dtype, shape, tuple(chunks), problem)


def _boxes(path: Path, name: str, shape: Shape, listed: list[Any]) -> Iterator[tuple[Shape, Shape]]:
    """Offsets and sizes of the chunks that hold anything."""
    for one in listed:
        known = isinstance(one, Record) and one.kind == "chunk"
        offsets, own = (_shape(one.field(key)) if known else None for key in ("offsets", "sizes"))
        if offsets is None or own is None or not len(offsets) == len(own) == len(shape):
            raise _damage(path, f"a chunk of {abbreviate(name)} is malformed")
        if any(at + size > side for at, size, side in zip(offsets, own, shape, strict=True)):
            raise _damage(path, f"a chunk of {abbreviate(name)} reaches beyond its shape {shape}")
        if 0 not in own:
            yield offsets, own


def _check_place(path: Path, name: str, place: _Range, needed: int, sizes: Mapping[str, int]) -> None:
    if place.length < needed and not place.transformed:
        raise _damage(path, f"a chunk of {abbreviate(name)} takes {needed:,} bytes, not {place.length:,}")
    end = place.begin + place.length
    if place.file in sizes and end > sizes[place.file]:
        raise InputError(
            f"{path.with_name(place.file)} has {sizes[place.file]:,} bytes, and {path.name} puts "
            f"{abbreviate(name)} into those up to {end:,}; it was cut off: copy or save it again."
        )


def _gaps(shape: Shape, chunks: list[Chunk]) -> str:
    """Whether chunks tile a tensor, each entry once; if not, why."""
    if 0 in shape:
        return ""
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        return "its parts are not all there, or overlap"
    if len(chunks) < 2:
        return ""
    cuts = [
        np.array(
            sorted({c.offsets[axis] for c in chunks} | {c.offsets[axis] + c.sizes[axis] for c in chunks})
        )
        for axis in range(len(shape))
    ]
    cells = math.prod(len(own) for own in cuts)
    if cells > _MOST_CELLS:
        return "its parts lie on no grid"
    covered = np.zeros([len(own) - 1 for own in cuts], dtype=np.int64)
    for chunk in chunks:
        inside = tuple(
            slice(int(np.searchsorted(own, at)), int(np.searchsorted(own, at + size)))
            for own, at, size in zip(cuts, chunk.offsets, chunk.sizes, strict=True)
        )
        covered[inside] += 1
    return "" if bool((covered == 1).all()) else "its parts overlap"


def _paths(planned: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(planned, dict):
        return {}
    return {
        name: tuple(map(str, path))
        for name, path in planned.items()
        if isinstance(name, str) and isinstance(path, tuple) and all(type(one) in (str, int) for one in path)
    }

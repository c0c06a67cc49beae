"""Safetensors at a distance: the header tells where the wanted tensors are, and only those are fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from joma.checkpoints.formats.shard import ABSENT, TensorEntry
from joma.core.errors import InputError
from joma.core.files import Json, parse_json, whole_file

Read = Callable[[int, int], Iterator[bytes]]
"""(begin, end) -> the bytes of that range, in pieces."""

FIRST = 32_768
"""Bytes that are read at once where a header's length is not known."""
_LONGEST_HEADER = 100_000_000  # as the format's own reader
_NEAR = 4_096


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of its tensors."""

    tensors: dict[str, tuple[str, tuple[int, ...], int, int]]
    """Name -> type, shape, begin and end within the file."""
    beginning: bytes
    """The file's first bytes, which have come already."""

    def entries(self, file: Path) -> dict[str, TensorEntry]:
        """What the file of this name says of its tensors."""
        return {
            name: TensorEntry(name, shape, dtype, file) for name, (dtype, shape, *_) in self.tensors.items()
        }

    def bytes_of(self, names: Iterable[str]) -> int:
        """How long these tensors are."""
        return sum(self.tensors[name][3] - self.tensors[name][2] for name in names)


def read_header(read: Read, size: int, where: str, first_bytes: int = FIRST) -> Header:
    """The header of a file of ``size`` bytes, of which ``first_bytes`` are read at once.

    Raises:
        InputError: it is none.
    """
    first = b"".join(read(0, min(max(8, first_bytes), size)))
    length = int.from_bytes(first[:8], "little")
    if size < 8 or length > min(_LONGEST_HEADER, size - 8):
        raise InputError(f"{where} is damaged: its header of {length} bytes does not fit into {size} bytes.")
    if 8 + length > len(first):
        first += b"".join(read(len(first), 8 + length))
    try:
        records: Any = parse_json(first[8 : 8 + length])
        if not isinstance(records, dict):
            raise ValueError("it is not a table of tensors")
        tensors = {}
        for name, record in records.items():
            if name != "__metadata__":
                begin, end = (8 + length + int(offset) for offset in record["data_offsets"])
                if not 8 + length <= begin <= end <= size:
                    raise ValueError(f"{name} lies outside the file")
                shape = tuple(int(side) for side in record["shape"])
                tensors[str(name)] = (str(record["dtype"]), shape, begin, end)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where} is damaged: its header cannot be read ({error}).") from error
    return Header(tensors, first)


def holds(path: Path, names: Iterable[str]) -> bool:
    """Whether a safetensors file is there already that has these tensors."""
    if not path.exists():
        return False

    def read(begin: int, end: int) -> Iterator[bytes]:
        with open(path, "rb") as file:
            file.seek(begin)
            yield file.read(end - begin)

    return set(names) <= set(read_header(read, path.stat().st_size, str(path)).tensors)


def write_wanted(read: Read, header: Header, names: Iterable[str], path: Path) -> None:
    """A safetensors file of these tensors alone, whole or not at all; of the others, names and shapes."""
    ordered = sorted(names, key=lambda name: header.tensors[name][2])
    absent = {name: record[:2] for name, record in header.tensors.items() if name not in ordered}
    records: dict[str, dict[str, Json]] = {"__metadata__": {"format": "pt", ABSENT: json.dumps(absent)}}
    position = 0
    for name in ordered:
        dtype, shape, begin, end = header.tensors[name]
        records[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + end - begin],
        }
        position += end - begin
    text = json.dumps(records).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for run in _runs([header.tensors[name][2:] for name in ordered]):
            _copy(partial(_after, header.beginning, read), run, file.write)


def _after(known: bytes, read: Read, begin: int, end: int) -> Iterator[bytes]:
    """The bytes of a range; those of the file's beginning are not read again."""
    here = min(end, max(begin, len(known)))
    if begin < here:
        yield known[begin:here]
    if here < end:
        yield from read(here, end)


def _runs(ranges: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Ranges that lie so near that one request for all is cheaper than one for each."""
    runs: list[list[tuple[int, int]]] = []
    for begin, end in ranges:
        if runs and begin - runs[-1][-1][1] <= _NEAR:
            runs[-1].append((begin, end))
        else:
            runs.append([(begin, end)])
    return runs


def _copy(read: Read, run: list[tuple[int, int]], write: Callable[[bytes], int]) -> None:
    position = run[0][0]
    for piece in read(run[0][0], run[-1][1]):
        for begin, end in run:
            low, high = max(begin, position), min(end, position + len(piece))
            if low < high:
                write(piece[low - position : high - position])
        position += len(piece)

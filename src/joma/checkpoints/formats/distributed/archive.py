"""One tensor out of the archive of ``torch.save`` that lies in a range of a larger file."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from joma.checkpoints.formats.distributed.pickles import TensorPickle, UnknownClassError, read_tensor_pickle
from joma.checkpoints.formats.unpickling import HostileError
from joma.core.errors import InputError, first_line

_LONGEST_PICKLE = 1 << 20
_LOCAL_HEADER = 30


class _Window(io.RawIOBase):
    """A range of a file as a file of its own."""

    def __init__(self, file: BinaryIO, begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if origin + offset < 0:
            raise ValueError("a place before the beginning")
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        size = max(0, min(len(view), self._length - self._at))
        self._file.seek(self._begin + self._at)
        content = self._file.read(size)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


@dataclass(frozen=True)
class ArchivedTensor:
    """Where in a file the entries of one tensor lie, and how."""

    file: Path
    begin: int
    """Byte of the storage's first entry."""
    entries: int
    """How many entries the storage has."""
    told: TensorPickle

    def with_shape(self, shape: tuple[int, ...]) -> ArchivedTensor:
        """The same entries with axes of length one put in or left out."""
        strides = iter(s for s, n in zip(self.told.strides, self.told.shape, strict=True) if n != 1)
        told = replace(self.told, shape=shape, strides=tuple(1 if n == 1 else next(strides) for n in shape))
        return replace(self, told=told)

    @property
    def is_plain(self) -> bool:
        """Whether its entries follow each other row by row."""
        expected = 1
        for size, stride in zip(reversed(self.told.shape), reversed(self.told.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def read_rows(self, first: int, last: int, into: Tensor) -> None:
        """Read the rows from ``first`` to before ``last`` of its first axis into a contiguous tensor.

        Raises:
            InputError: the file ends before them.
        """
        shape, size = self.told.shape, self.told.dtype.itemsize
        if self.is_plain:
            row = math.prod(shape[1:])
            self._read(self.begin + size * (self.told.offset + first * row), into)
            return
        whole = torch.empty(self.entries, dtype=self.told.dtype)
        self._read(self.begin, whole)
        entries = whole.as_strided(shape, self.told.strides, self.told.offset)
        into.copy_(entries[first:last] if shape else entries)

    def _read(self, begin: int, into: Tensor) -> None:
        if not into.numel():
            return
        view, done = into.reshape(-1).view(torch.uint8).numpy().data, 0
        with open(self.file, "rb", buffering=0) as file:
            file.seek(begin)
            while done < len(view):  # one call reads at most 2 GiB
                count = file.readinto(view[done:])
                if not count:
                    raise InputError(f"{self.file} ends within a tensor; copy or save it again.")
                done += count


def find_archived(path: Path, begin: int, length: int, what: str) -> ArchivedTensor:
    """Read what an archive in a range of a file says of its one tensor.

    Args:
        path: the file.
        begin: where the archive begins.
        length: its bytes; the range lies within the file.
        what: the tensor's name, for errors.

    Raises:
        InputError: no archive of one dense tensor lies there, or one that asks for an act of Python.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            window = io.BufferedReader(_Window(file, begin, length), 4096)
            with zipfile.ZipFile(window) as archive:
                return _locate(path, archive, window, begin, length)
    except HostileError as error:
        raise InputError(
            f"{path} would run code when {what!r} is unpickled ({error}) and was refused unread; do not "
            "trust this checkpoint."
        ) from error
    except UnknownClassError as error:
        raise InputError(
            f"{path}: {what!r} is no plain tensor ({error}), which joma does not read; save it dense."
        ) from error
    except InputError:
        raise
    except Exception as error:  # wherever the bytes of a damaged archive lead
        raise InputError(
            f"{path} is damaged where {what!r} lies ({first_line(error)}); copy or save it again."
        ) from error


def _locate(
    path: Path, archive: zipfile.ZipFile, window: BinaryIO, begin: int, length: int
) -> ArchivedTensor:
    records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    program = records["data.pkl"]
    if program.file_size > _LONGEST_PICKLE or program.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"its data.pkl has {program.file_size:,} bytes")
    order = records.get("byteorder")
    if order is not None and order.file_size < 16 and archive.read(order) != b"little":
        raise ValueError("it was written by a big-endian machine")
    told = read_tensor_pickle(archive.read(program))
    record = records[f"data/{told.key}"]
    if record.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed")
    window.seek(record.header_offset)
    header = window.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise ValueError("a record of it begins nowhere")
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    data = record.header_offset + _LOCAL_HEADER + names
    entries = record.file_size // told.dtype.itemsize
    last = told.offset + sum((n - 1) * s for n, s in zip(told.shape, told.strides, strict=True))
    if data + record.file_size > length or (0 not in told.shape and last >= entries):
        raise ValueError(f"a tensor of shape {told.shape} reaches beyond its bytes")
    return ArchivedTensor(path, begin + data, entries, told)

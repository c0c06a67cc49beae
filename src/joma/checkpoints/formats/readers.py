"""The file formats of checkpoints: safetensors, PyTorch's pickled archives, GGUF."""

from __future__ import annotations

import importlib
import importlib.util
import math
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from joma.checkpoints.formats.shard import ABSENT, Room, Shard, TensorEntry
from joma.checkpoints.formats.state_dicts import counts_of, holds_arrays, sizes_of, state_of
from joma.checkpoints.formats.unpickling import HostileError, content_of
from joma.core.errors import InputError
from joma.core.files import Json, parse_json

_LONGEST_HEADER = 100_000_000  # as the format's own reader
SAFETENSORS_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
TYPE_NAMES = {dtype: name for name, dtype in SAFETENSORS_TYPES.items()}
"""How a stored type is called, whatever the format."""
_LONGEST_PICKLE = 64 << 20
"""Bytes of the program that names an archive's tensors; it takes about 150 a tensor."""
_SAVE_BY_TORCH = "save the weights by torch.save, as a mapping from names to tensors"
_ALWAYS = 64 << 20
"""Bytes that a tensor may take whatever the size of its file."""


def _damage_error(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is damaged or not what its name says ({reason}); download or save it again.")


class SafetensorsShard(Shard):
    """A safetensors file. Bytes are read into the tensor's own memory, not mapped.

    A mapping would keep the whole file in the process's resident memory as long as one tensor lives.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ranges: dict[str, tuple[int, int]] = {}
        entries: dict[str, TensorEntry] = {}
        header, data = self._header()
        for name, record in header.items():
            if name == "__metadata__":
                continue
            try:
                shape = tuple(int(side) for side in record["shape"])
                stored = str(record["dtype"])
                begin, end = (int(offset) for offset in record["data_offsets"])
            except (TypeError, KeyError, ValueError) as error:
                raise _damage_error(path, f"the header's record of {name!r} is malformed") from error
            self._check(name, shape, stored, begin, end)
            self._ranges[name] = (data + begin, data + end)
            known = stored in SAFETENSORS_TYPES
            problem = "" if known else f"its type {stored!r} is not known here"
            entries[name] = TensorEntry(name, shape, stored, path, problem)
        self._check_ranges(data)
        self.entries: Mapping[str, TensorEntry] = self._absent(header) | entries

    def _header(self) -> tuple[dict[str, Any], int]:
        size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(_LONGEST_HEADER, size - 8):
                raise _damage_error(self.path, f"its header of {length} bytes does not fit into {size} bytes")
            text = file.read(length)
        try:
            header = parse_json(text)
        except ValueError as error:
            raise _damage_error(self.path, f"its header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise _damage_error(self.path, "its header is not a table of tensors")
        return header, 8 + length

    def _absent(self, header: dict[str, Any]) -> dict[str, TensorEntry]:
        """What was not fetched with the others; its names and shapes are known all the same."""
        metadata = header.get("__metadata__")
        try:
            told: Any = (
                parse_json(metadata[ABSENT]) if isinstance(metadata, dict) and ABSENT in metadata else {}
            )
            if not isinstance(told, dict):
                raise TypeError("no table")
            return {
                str(name): TensorEntry(str(name), tuple(map(int, shape)), str(stored), self.path)
                for name, (stored, shape) in told.items()
            }
        except (ValueError, TypeError) as error:
            raise _damage_error(self.path, "what it says of absent tensors is malformed") from error

    def _check(self, name: str, shape: tuple[int, ...], stored: str, begin: int, end: int) -> None:
        if stored in SAFETENSORS_TYPES:
            expected = SAFETENSORS_TYPES[stored].itemsize * math.prod(shape)
        else:  # newer than this reader, or empty: only this tensor cannot be read
            expected = max(end - begin, 0)
        if min(shape, default=0) < 0 or begin < 0 or end - begin != expected:
            raise _damage_error(
                self.path,
                f"{name!r} of shape {shape} and type {stored} takes {expected} bytes, not {end - begin}",
            )

    def _check_ranges(self, data: int) -> None:
        size, position = self.path.stat().st_size, data
        for name, (begin, end) in sorted(self._ranges.items(), key=lambda item: item[1]):
            if begin != position:
                raise _damage_error(self.path, f"{name!r} does not begin where the tensor before it ends")
            position = end
        if position != size:
            missing = position - size
            reason = f"{missing} bytes are missing" if missing > 0 else f"{-missing} bytes too many"
            raise _damage_error(self.path, f"{reason} at its end")

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """A copy of one tensor, in ``room`` where there is one."""
        if name not in self._ranges:
            raise InputError(f"{self.path}: {name!r} was not fetched with the others; fetch the whole model.")
        entry, (begin, end) = self.entries[name], self._ranges[name]
        if entry.problem:
            raise InputError(f"{self.path}: {name!r} cannot be read: {entry.problem}.")
        content = (room or Room()).take(end - begin)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(begin)
            view, done = content.numpy().data, 0
            while done < len(view):  # one call reads at most 2 GiB
                count = file.readinto(view[done:])
                if not count:
                    raise _damage_error(self.path, f"it ends within {name!r}")
                done += count
        return content.view(SAFETENSORS_TYPES[entry.dtype]).reshape(entry.shape)


class PickledShard(Shard):
    """A file of ``torch.save``: its tensors are mapped from the disk, and nothing that it names is run.

    Formats from before PyTorch 1.6 cannot be mapped and are read whole. A compressed archive is refused: its
    bytes, mapped, would be taken for numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._size = path, path.stat().st_size
        content = pickled_content(path)
        self._tensors, self.asides = state_of(content)
        self.counts, self.config = counts_of(content), sizes_of(content)
        if not self._tensors:
            if holds_arrays(content):
                raise InputError(
                    f"{path} holds NumPy arrays, and weights are read from tensors; save "
                    "{name: torch.from_numpy(array)} for each of them."
                )
            raise InputError(f"{path} holds no tensors by name; give a file with a model's state_dict.")
        most = max(self._size, _ALWAYS)
        self.entries: Mapping[str, TensorEntry] = {
            name: entry_of(name, tensor, path, most) for name, tensor in self._tensors.items()
        }

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """A copy of one tensor."""
        if self.entries[name].problem:
            raise InputError(f"{self.path}: {name!r} cannot be read: {self.entries[name].problem}.")
        if self.path.exists() and (size := self.path.stat().st_size) < self._size:
            # The system ends a process that reads beyond the end of a file that it has mapped.
            raise InputError(
                f"{self.path} became shorter while it was read ({size:,} bytes of {self._size:,}); read it "
                "again when whatever writes it has finished."
            )
        return self._tensors[name].detach().clone()


def pickled_content(path: Path) -> Any:
    """What a file of ``torch.save`` holds, its tensors mapped where it is an archive; nothing of it is run.

    Raises:
        InputError: it would run code, is damaged, compressed, or promises more than it holds.
    """
    mapped = zipfile.is_zipfile(path)
    if mapped:
        _check_archive(path)
    elif (head := _head(path)) == b"PK":
        raise _damage_error(path, "the archive's directory at its end is missing: it is truncated")
    elif head == b"\x93N":
        raise InputError(f"{path} is one array of NumPy (.npy); {_SAVE_BY_TORCH}.")
    try:
        if mapped and _is_script(path):
            raise HostileError("a program of TorchScript")
        return content_of(path, mapped=mapped)
    except HostileError as error:
        raise InputError(
            f"{path} would run code when it is unpickled ({error}) and was refused unread; ask its "
            "author for safetensors, or for a file that holds only tensors."
        ) from error
    except Exception as error:  # whatever the program of a malformed pickle comes to
        if not mapped and head[:1] == pickle.PROTO and "magic number" in str(error):
            raise InputError(
                f"{path} is a pickle that torch.save did not write; {_SAVE_BY_TORCH}."
            ) from error
        raise _damage_error(path, _first_sentence(error)) from error


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _damage_error(
            path, f"the archive's directory cannot be read: {_first_sentence(error)}"
        ) from error
    if records and all(record.filename.endswith(".npy") for record in records):
        raise InputError(f"{path} is an archive of NumPy (.npz); {_SAVE_BY_TORCH}.")
    if any(record.compress_type != zipfile.ZIP_STORED for record in records) or _is_packed(path, records):
        raise InputError(
            f"{path} is compressed, and torch.save compresses nothing; unpack it and pack it again "
            "without compression (zip -0), or save it again."
        )
    size = path.stat().st_size
    if len({record.filename for record in records}) < len(records):
        raise _damage_error(path, "two records of the archive have one name")
    for record in records:
        if record.file_size > size or record.header_offset > size:
            raise _damage_error(
                path, f"{record.filename!r} of {record.file_size:,} bytes is larger than the file"
            )
        if record.filename.endswith("data.pkl") and record.file_size > _LONGEST_PICKLE:
            raise InputError(
                f"{path}: its data.pkl has {record.file_size:,} bytes, more than "
                f"{_LONGEST_PICKLE:,}; save only the state_dict."
            )


def _is_packed(path: Path, records: Sequence[zipfile.ZipInfo]) -> bool:
    """Whether a record is compressed by what stands before it, whatever the directory at the end says."""
    with open(path, "rb") as file:
        for record in records:
            file.seek(record.header_offset)
            head = file.read(10)
            if head[:4] == b"PK\x03\x04" and head[8:10] != b"\0\0":
                return True
    return False


def _first_sentence(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__


def _is_script(path: Path) -> bool:
    """Whether an archive is TorchScript's: what it holds is code."""
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(2)


def entry_of(name: str, tensor: Tensor, path: Path, most: int) -> TensorEntry:
    """What is known of a pickled tensor before it is copied; ``most``: bytes that a copy may take."""
    kind = TYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    if tensor.is_nested:  # it has no shape
        return TensorEntry(name, (), kind, path, "it is a nested tensor")
    problem = ""
    if tensor.is_meta:
        problem = "it lies on the meta device and holds no numbers"
    elif tensor.layout != torch.strided:
        problem = f"its layout is {str(tensor.layout).removeprefix('torch.')}, not dense; save it dense"
    elif tensor.is_quantized:
        problem = "it is a quantised tensor of PyTorch; save it dequantised"
    elif tensor.numel() * tensor.element_size() > most:
        size = tensor.numel() * tensor.element_size()
        problem = f"it is an expanded tensor that would take {size:,} bytes, more than its file"
    return TensorEntry(name, tuple(tensor.shape), kind, path, problem)


class _Field(Protocol):
    def contents(self) -> Json: ...


class _Reader(Protocol):
    fields: Mapping[str, _Field]


class GgufShard(Shard):
    """A GGUF file through the package ``gguf``; quantised tensors are dequantised to float32 one by one.

    Llama's queries and keys are stored there with the rows of each head permuted, which changes no
    singular value.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if importlib.util.find_spec("gguf") is None:
            raise InputError(f"{path}: reading GGUF needs the package gguf; run: pip install gguf")
        gguf = importlib.import_module("gguf")
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise _damage_error(path, "it does not begin with GGUF")
        try:
            reader = _bound_reader(gguf.GGUFReader)(path)
        except Exception as error:
            # The reader has no errors of its own: a damaged file fails wherever its bytes lead.
            raise _damage_error(path, f"{type(error).__name__}: {_first_sentence(error)}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.config = _gguf_sizes(reader)
        self.entries: Mapping[str, TensorEntry] = {
            name: TensorEntry(
                name, tuple(int(side) for side in reversed(tensor.shape)), tensor.tensor_type.name, path
            )
            for name, tensor in self._tensors.items()
        }

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """A copy of one tensor, as float32."""
        gguf = importlib.import_module("gguf")
        tensor = self._tensors[name]
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise InputError(
                f"{self.path}: the package gguf cannot dequantise {name!r} ({tensor.tensor_type.name}); "
                "take a file in another quantisation."
            ) from error
        return torch.tensor(values, dtype=torch.float32).reshape(self.entries[name].shape)


def _bound_reader(reader: Any) -> Any:
    """The package's reader, but with an end: a file that promises 2^40 entries would keep it for days."""

    def get(self: Any, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> object:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it promises more than it holds")
        return reader._get(self, offset, dtype, count, override_order)

    return type("Bounded", (reader,), {"_get": get})


_GGUF_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_experts",
    "attention.shared_kv_layers": "num_kv_shared_layers",
}


def _gguf_sizes(reader: _Reader) -> dict[str, Json]:
    """The sizes that a GGUF file states, under the names of a config.json. What differs between layers is
    left out."""
    sizes: dict[str, Json] = {}
    for key, field in reader.fields.items():
        name = _GGUF_SIZES.get(key.partition(".")[2])
        value = field.contents() if name is not None else None
        if name is not None and isinstance(value, int):
            sizes[name] = value
    return sizes

"""The two pickles of a distributed checkpoint of PyTorch, read by names of classes that are known in advance.

No class is imported and nothing that a pickle names is called: what is known becomes a ``Record`` that keeps
what it is given, and what is not known ends the reading.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import torch

from joma.checkpoints.formats.unpickling import HostileError, Unpickler

_STATES = "torch.distributed.checkpoint.metadata"
_PLANS = "torch.distributed.checkpoint.planner"
_FILES = "torch.distributed.checkpoint.filesystem"
_SHARDS = "torch.distributed._shard.sharded_tensor.metadata"
_MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"
_OLMO = "olmo_core.distributed.checkpoint.filesystem"
_KNOWN = {
    (_STATES, "Metadata"): "metadata",
    (_MEGATRON, "MCoreMetadata"): "metadata",
    (_STATES, "TensorStorageMetadata"): "tensor",
    (_STATES, "BytesStorageMetadata"): "bytes",
    (_STATES, "ChunkStorageMetadata"): "chunk",
    (_STATES, "MetadataIndex"): "index",
    (_STATES, "TensorProperties"): "properties",
    (_SHARDS, "TensorProperties"): "properties",
    (_STATES, "StorageMeta"): "plain",
    (_STATES, "_MEM_FORMAT_ENCODING"): "plain",
    (_SHARDS, "MEM_FORMAT_ENCODING"): "plain",
    (_FILES, "_StorageInfo"): "range",
    (_OLMO, "_StorageInfo"): "range",
    (_FILES, "_StoragePrefix"): "plain",
    (_OLMO, "_StoragePrefix"): "plain",
    ("torch.serialization", "_get_layout"): "plain",
    (_MEGATRON, "MCoreSavePlan"): "plain",
    **{
        (_PLANS, name): "plain"
        for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")
    },
    **{
        (module, name): "plain"
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}
"""Module and name of every class that the metadata may name -> what its object is here."""
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
}


class UnknownClassError(pickle.UnpicklingError):
    """A pickle that names a class which is not among those known: its name stands in ``args``."""


class Record:
    """An object of a known class: what it is, what its class was called with, and its state."""

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind, self.args = kind, args
        self.state: object = None

    def field(self, name: str) -> Any:
        """A field of its state, None where there is none."""
        return self.state.get(name) if isinstance(self.state, dict) else None


@dataclass(frozen=True)
class _Maker:
    """What stands for a class or function that a pickle names."""

    kind: str

    def __call__(self, *args: Any) -> Any:
        return tuple(args[0]) if self.kind == "size" else Record(self.kind, args)


class _KnownUnpickler(Unpickler):
    """What both have in common: a name is one of those known, or the end."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch", "Size"):
            return _Maker("size")
        if (module, name) in (("collections", "OrderedDict"), ("builtins", "dict")):
            return _Maker("dictionary")
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        root = module.partition(".")[0]
        if root in sys.stdlib_module_names | {"nt", "posix", "__builtin__"}:
            raise HostileError(f"{module}.{name}")
        raise UnknownClassError(f"{module}.{name}")

    def _make(self, maker: Any, args: tuple[Any, ...]) -> Any:
        if not isinstance(maker, _Maker):
            raise pickle.UnpicklingError("it calls what is no class")
        if maker.kind == "dictionary":
            return {}
        return maker(*args)

    def load_build(self) -> None:
        """Keep the state of a record; no attribute of anything is set."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Record):
            target.state = state

    dispatch = dict(Unpickler.dispatch)
    dispatch[pickle.BUILD[0]] = load_build


class _MetadataUnpickler(_KnownUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        kind = _KNOWN.get((module, name))
        return super().find_class(module, name) if kind is None else _Maker(kind)


class _TensorUnpickler(_KnownUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Maker("tensor")
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _Maker("tensor of a type")
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if name == "UntypedStorage" and module in ("torch", "torch.storage"):
            return torch.uint8
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """A storage: its type, and the name of its record in the archive."""
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError("a storage of no known type")
        return dtype, key


def read_metadata_pickle(content: bytes) -> Record:
    """What the file ``.metadata`` holds.

    Raises:
        HostileError: it asks for an act of Python.
        UnknownClassError: it names a class that is not known here.
        Exception: whatever the program of a malformed pickle comes to.
    """
    found = _MetadataUnpickler(io.BytesIO(content)).load()
    if not isinstance(found, Record) or found.kind != "metadata" or not isinstance(found.state, dict):
        raise pickle.UnpicklingError("it holds no metadata")
    return found


@dataclass(frozen=True)
class TensorPickle:
    """What the pickle of one saved tensor says of it."""

    dtype: torch.dtype
    key: str
    """Name of its bytes in the archive: ``data/KEY``."""
    offset: int
    """Entries before its first one."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensor_pickle(content: bytes) -> TensorPickle:
    """What the ``data.pkl`` of one tensor's archive holds.

    Raises:
        HostileError: it asks for an act of Python.
        UnknownClassError: it names a class that is not known here.
        Exception: whatever the program of a malformed pickle comes to.
    """
    found = _TensorUnpickler(io.BytesIO(content)).load()
    if not isinstance(found, Record) or not found.kind.startswith("tensor"):
        raise pickle.UnpicklingError("it holds no plain tensor")
    (stored, key), offset, shape, strides, *rest = found.args
    dtype = rest[2] if found.kind == "tensor of a type" else stored
    numbers = (offset, *shape, *strides)
    if not isinstance(dtype, torch.dtype) or not all(type(n) is int and n >= 0 for n in numbers):
        raise pickle.UnpicklingError("a tensor of no type or of no size")
    if len(shape) != len(strides):
        raise pickle.UnpicklingError("a tensor whose strides are not those of its shape")
    return TensorPickle(dtype, key, offset, tuple(shape), tuple(strides))

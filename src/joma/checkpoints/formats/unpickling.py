"""What a file of ``torch.save`` holds, without running anything that it names.

Tensors are built by functions of this module, plain containers are themselves, and whatever else a pickle
names (NumPy values, dates, paths, arguments, whole modules) becomes an ``Inert`` object that only keeps
what it is given. A pickle that asks for an act of the interpreter or the system is refused, though it would
not be done.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import IO, Any, ClassVar

import torch
from torch import Tensor
from torch.serialization import SourceChangeWarning

_DATA_MODULES = {
    *("collections", "argparse", "pathlib", "datetime", "decimal", "fractions", "uuid", "enum", "types"),
    *("array", "dataclasses", "_codecs", "copyreg", "random", "ipaddress", "zoneinfo", "typing", "logging"),
}
_DATA_TYPES = {
    *("set", "frozenset", "list", "tuple", "dict", "bytes", "bytearray", "complex", "int", "float", "str"),
    *("bool", "slice", "range", "object", "type"),
}
_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_TORCH_VALUES = (torch.dtype, torch.qscheme, torch.layout, torch.memory_format)


class HostileError(pickle.UnpicklingError):
    """A pickle that asks for an act: its name stands in ``args``."""


class Inert:
    """What stands for an object that is not built: it keeps its items and its state."""

    dump_patches: ClassVar[bool] = False
    """PyTorch asks it of the class of a module whose source has changed, and would write a file if true."""

    def __init__(self, *args: object, **named: object) -> None:
        self.items: dict[Any, Any] = {}
        self.state: object = None

    def __call__(self, *args: object, **named: object) -> Inert:
        """Another one."""
        return Inert()

    def __setitem__(self, key: object, value: object) -> None:
        self.items[key] = value

    def append(self, value: object) -> None:
        """Nothing."""

    extend = add = update = append


class _Table(dict[Any, Any]):
    """Any of the dictionaries of the standard library."""

    def __init__(self, items: object = (), *rest: object) -> None:
        super().__init__(items if isinstance(items, list | tuple | dict) else ())


def _view(empty: Tensor, storage: Any, offset: int, size: Any, stride: Any) -> Tensor:
    """``empty`` set to a part of a storage that is long enough."""
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    count = storage._untyped_storage.nbytes() // empty.dtype.itemsize
    if min((offset, *size, *stride), default=0) < 0 or (0 not in size and last >= count):
        raise pickle.UnpicklingError(f"a tensor of shape {tuple(size)} reaches beyond its {count} entries")
    return empty.set_(storage._untyped_storage, offset, tuple(size), tuple(stride))


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *rest: object) -> Tensor:
    """``torch._utils._rebuild_tensor``."""
    return _view(torch.empty((0,), dtype=storage.dtype), storage, offset, size, stride)


def _tensor_of_type(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> Tensor:
    """``torch._utils._rebuild_tensor_v3``: the type stands apart from the storage."""
    dtype = rest[2]
    if not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError("a tensor without a type")
    return _view(torch.empty((0,), dtype=dtype), storage, offset, size, stride)


def _build_quantised(storage: Any, offset: int, size: Any, stride: Any, *rest: object) -> Tensor:
    """``torch._utils._rebuild_qtensor`` without its scales: nothing reads its numbers."""
    empty = torch._empty_affine_quantized((0,), scale=1.0, zero_point=0, dtype=storage.dtype)
    return _view(empty, storage, offset, size, stride)


def _meta(dtype: Any, size: Any, stride: Any, *rest: object) -> Tensor:
    """``torch._utils._rebuild_meta_tensor_no_storage``."""
    return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device="meta")


def _layout(name: str) -> object:
    """``torch.serialization._get_layout``."""
    return getattr(torch, name.removeprefix("torch.")) if name in map(str, _LAYOUTS) else Inert()


def _sparse(layout: Any, data: Any) -> Tensor:
    """``torch._utils._rebuild_sparse_tensor``; its indices are not followed."""
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*data[:3], check_invariants=False)
    return torch.sparse_compressed_tensor(*data[:4], layout=layout, check_invariants=False)


def _build_nested(buffer: Tensor, *rest: object) -> Tensor:
    """``torch._utils._rebuild_nested_tensor`` without its parts: nothing reads its numbers."""
    return torch.nested.nested_tensor([], dtype=buffer.dtype)


def _first(data: Any, *rest: object) -> Any:
    """The data of a parameter."""
    return data


def _of_type(make: Any, kind: object, args: tuple[Any, ...], state: object) -> Any:
    """A tensor of a subclass: its data where they are a plain tensor's."""
    return make(*args) if any(make is known for known in _BUILT.values()) else Inert()


_PYTHONS_OWN: Any = pickle._Unpickler  # written in Python, so that each of its steps can be replaced
_BUILT: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_type,
    ("torch._utils", "_rebuild_qtensor"): _build_quantised,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _meta,
    ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    ("torch._utils", "_rebuild_nested_tensor"): _build_nested,
    ("torch.serialization", "_get_layout"): _layout,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    ("collections", "OrderedDict"): _Table,
    ("collections", "defaultdict"): _Table,
    ("collections", "Counter"): _Table,
    ("builtins", "dict"): _Table,
    ("torch", "Size"): tuple,
}


class Unpickler(_PYTHONS_OWN):  # type: ignore[misc]
    """Python's own, which calls nothing but what this module makes."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PYTHONS_OWN.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a global of a pickle."""
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        if (module, name) in _BUILT:
            return _BUILT[module, name]
        if module in ("torch", "torch.storage") and name == "UntypedStorage":
            return torch.UntypedStorage  # told by its identity, never called
        if module == "torch" and isinstance(getattr(torch, name, None), _TORCH_VALUES):
            return getattr(torch, name)
        root = module.partition(".")[0]
        data = name in _DATA_TYPES if module == "builtins" else root in _DATA_MODULES
        if root in sys.stdlib_module_names | {"nt", "posix"} and not data:
            raise HostileError(f"{module}.{name}")
        return Inert

    def _make(self, maker: Any, args: tuple[Any, ...]) -> Any:
        known = maker is Inert or isinstance(maker, Inert) or any(maker is one for one in _BUILT.values())
        return maker(*args) if known else Inert()

    def load_reduce(self) -> None:
        """Call what this module made; nothing else."""
        args, maker = self.stack.pop(), self.stack[-1]
        self.stack[-1] = self._make(maker, tuple(args))

    def load_newobj(self) -> None:
        """Likewise."""
        args, maker = self.stack.pop(), self.stack.pop()
        self.append(self._make(maker, tuple(args)))

    def load_newobj_ex(self) -> None:
        """Likewise; arguments by name are dropped."""
        self.stack.pop()
        self.load_newobj()

    def _instantiate(self, maker: Any, args: list[Any]) -> None:
        self.append(self._make(maker, tuple(args)))

    def load_build(self) -> None:
        """Keep the state of what is not built; no attribute of anything is set."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert):
            target.state = state

    def load_bytearray8(self) -> None:
        """As many bytes as there are; Python's own asks for as much memory as a pickle promises."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def load(file: IO[bytes], **options: Any) -> Any:
    """One pickle out of a file, as ``pickle.load``."""
    return Unpickler(file, **options).load()


def content_of(path: Path, *, mapped: bool) -> Any:
    """What a file of ``torch.save`` holds.

    Args:
        path: the file.
        mapped: whether its tensors lie in the file; else they are read.

    Raises:
        HostileError: a pickle that asks for an act.
        Exception: whatever the program of a malformed pickle comes to.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SourceChangeWarning)  # a module's class is never its own here
        return torch.load(
            path, map_location="cpu", weights_only=False, mmap=mapped, pickle_module=sys.modules[__name__]
        )

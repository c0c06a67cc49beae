"""The weights of a model in memory, with the face of a checkpoint on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeGuard, cast

import torch
from torch import Tensor, nn

from joma.checkpoints.acting import has_own_way, pushed_through
from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.families.sizes import config_of
from joma.checkpoints.formats.shard import Room, Shard, TensorEntry
from joma.core.errors import InputError, nearest
from joma.measures.tensors import dense

_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_BUFFERS = re.compile(
    r".*weight.*|scales|qzeros|SCB"
)  # masks, scales and packed values stand beside parameters


class _Memory(Shard):
    """What a module multiplies by, module by module; what is tied stands there once."""

    def __init__(self, model: nn.Module) -> None:
        self.path = Path(type(model).__name__)
        self._read: dict[str, Callable[[], Tensor]] = {}
        self.entries: dict[str, TensorEntry] = {}
        self.tied: dict[str, str] = {}
        seen: dict[int, str] = {}
        for name, tensor, read, problem in _tensors(model):
            if id(tensor) in seen:
                self.tied[name] = seen[id(tensor)]
                continue
            seen[id(tensor)] = name
            sharded = getattr(tensor, "ds_shape", None)
            packed = getattr(getattr(tensor, "quant_state", None), "shape", None)
            shape = tuple(packed or (tensor.shape if sharded is None else sharded))
            if sharded is not None and tensor.numel() == 0:
                problem = "ZeRO-3 keeps it elsewhere; gather it first (deepspeed.zero.GatheredParameters)"
            self.entries[name] = TensorEntry(name, shape, _dtype(tensor), self.path, problem)
            self._read[name] = read

    def read(self, name: str, room: Room | None = None) -> Tensor:
        if name not in self._read:
            raise InputError(f"{self.path} holds no weight {name!r}; {nearest(name, self._read)}")
        with torch.no_grad():
            return dense(str(self.path), name, self._read[name]().detach())


def weights_of(model: nn.Module) -> Checkpoint:
    """A model's weights as a ``joma.checkpoints.checkpoint.Checkpoint``; what is plain is not
    copied.

    Adapters of PEFT that are switched on are added, parametrised weights are computed, quantised and
    offloaded ones restored when they are read; the model itself is left as it is.
    """
    return Checkpoint(Path(type(model).__name__), [_Memory(model)], config_of(model) or None)


Described = tuple[str, Tensor, Callable[[], Tensor], str]


def _tensors(model: nn.Module) -> Iterator[Described]:
    """Name, identity, how to read it, and what is wrong with it, of every weight that the model uses."""
    aside: list[str] = []  # modules whose own tensors are accounted for, or not used
    for name, module in model.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        if prefix.startswith(tuple(aside)):
            continue
        if _is_tuner(module):
            aside.append(prefix)
            yield from _adapted_layer(prefix, module)
            continue
        if hasattr(module, "original_module") and hasattr(module, "modules_to_save"):
            trained = not getattr(module, "disable_adapters", False) and module.active_adapters
            aside += [f"{prefix}modules_to_save."] if not trained else [f"{prefix}original_module."]
        parametrized = getattr(module, "parametrizations", None)
        if isinstance(parametrized, nn.ModuleDict):
            aside.append(f"{prefix}parametrizations.")
            for own, chain in parametrized.items():
                stored = max(chain.parameters(recurse=False), key=torch.numel)
                yield f"{prefix}{own}", stored, partial(_parametrised_weight, module, own, chain), ""
        if has_own_way(module):
            yield from _own_way(prefix, module)
            continue
        for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield f"{prefix}{own}", parameter, _reader(module, own, parameter), ""
        for own, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if _BUFFERS.fullmatch(own):
                yield f"{prefix}{own}", buffer, _reader(module, own, buffer), ""


def _reader(module: nn.Module, own: str, tensor: Tensor) -> Callable[[], Tensor]:
    """How to read a tensor: itself, or where accelerate keeps it while its module does not run."""
    if not tensor.is_meta:
        scales = getattr(getattr(module, "state", None), "SCB", None)
        if tensor.dtype == torch.int8 and isinstance(scales, Tensor):  # bitsandbytes, once it has run
            return partial(_by_rows, tensor, scales)
        return lambda: tensor
    hook = getattr(module, "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        kept = getattr(one, "weights_map", None)
        if kept is not None:
            return lambda: kept[own]
    return lambda: tensor


def _by_rows(values: Tensor, scales: Tensor) -> Tensor:
    return values.float() * scales.float()[:, None] / 127


def _parametrised_weight(module: nn.Module, own: str, chain: nn.Module) -> Tensor:
    """A parametrised weight; spectral normalisation must not take it for a step of training."""
    training = [(part, part.training) for part in chain.modules()]
    try:
        chain.eval()
        value: Tensor = getattr(module, own)
        return value
    finally:
        for part, flag in training:
            part.training = flag


def _own_way(prefix: str, module: nn.Linear) -> Iterator[Described]:
    """A linear layer with a forward of its own, which does more than its weight: as it acts."""
    pushed = pushed_through(module, module, module.weight)
    unclear = f"its module ({type(module).__name__}) does something else with it than a linear layer"
    yield f"{prefix}weight", module.weight, pushed or (lambda: module.weight), "" if pushed else unclear
    for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if parameter.ndim < 2:  # what else is in it acts in the weight
            yield f"{prefix}{own}", parameter, _reader(module, own, parameter), ""


class _Tuner(Protocol):
    """A layer under PEFT."""

    base_layer: nn.Module
    merged: bool
    active_adapters: Sequence[str]
    adapter_layer_names: Sequence[str]


def _is_tuner(module: nn.Module) -> TypeGuard[_Tuner]:
    return hasattr(module, "base_layer") and hasattr(module, "adapter_layer_names")


def _adapted_layer(prefix: str, module: _Tuner) -> Iterator[Described]:
    """A layer under PEFT: its base weight with what the adapters that are switched on add to it."""
    off = module.merged or getattr(module, "disable_adapters", False)
    held = [
        adapter
        for adapter in ([] if off else module.active_adapters)
        if any(adapter in _keys(getattr(module, part, None)) for part in module.adapter_layer_names)
    ]
    target = getattr(module, "parameter_name", "weight")
    for own, tensor, read, problem in _tensors(module.base_layer):
        if held and own == target and tensor.ndim == 2:
            pushed = pushed_through(cast(nn.Module, module), module.base_layer, tensor)
            unclear = f"how an adapter ({type(module).__name__}) changes it is not known"
            yield f"{prefix}{own}", tensor, pushed or read, problem if pushed else problem or unclear
        elif held and tensor.ndim >= 2:
            unclear = f"how an adapter ({type(module).__name__}) changes it is not known"
            yield f"{prefix}{own}", tensor, read, problem or unclear
        else:
            yield f"{prefix}{own}", tensor, read, problem


def _keys(container: Mapping[str, nn.Module] | nn.Module | None) -> list[str]:
    keys = getattr(container, "keys", None)
    return list(keys()) if callable(keys) else []


def _dtype(tensor: Tensor) -> str:
    if type(tensor).__name__ in ("Int8Params", "Params4bit"):
        return f"bitsandbytes {type(tensor).__name__}"
    name = str(tensor.dtype).removeprefix("torch.")
    return _NAMES.get(name, name)

"""Megatron's checkpoints of the kind ``torch_dist``: PyTorch's distributed format with names of its own.

Layers that are alike are one tensor whose first axis counts them (``decoder.layers.mlp.linear_fc1.weight``);
here each is a tensor of its own (``decoder.layers.3.mlp.linear_fc1.weight``). ``linear_qkv`` holds, query
group by query group, its queries, its keys and its values; ``linear_fc1`` of a gated MLP all of the gate and
then all of the lower matrix, which some versions keep apart as ``weight_w`` and ``weight_v``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from joma.checkpoints.formats.distributed.shard import DistributedShard
from joma.checkpoints.formats.readers import pickled_content
from joma.checkpoints.formats.shard import Room, TensorEntry
from joma.checkpoints.formats.state_dicts import counts_of
from joma.checkpoints.formats.unpickling import Inert
from joma.core.errors import InputError
from joma.core.files import LONGEST_CONFIG, Json, parse_json, read_bytes

DESCRIPTION = "metadata.json"
_COMMON = "common.pt"
_BACKEND = "torch_dist"
_STACK = re.compile(r"((?:.*\.)?layers)\.((?!\d+\.).+)")
_HALF = re.compile(r"(.*\.linear_fc1\.weight)_([wv])")
_SETTINGS = {
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_key_value_heads",
    "kv_channels": "head_dim",
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "num_experts": "num_experts",
}
"""Megatron's arguments -> what a config.json calls them."""


def backend_of(folder: Path) -> str:
    """The kind of a folder of Megatron, as its ``metadata.json`` says; empty where it is none.

    Raises:
        InputError: the file is no JSON.
    """
    file = folder / DESCRIPTION
    if not file.is_file():
        return ""
    try:
        told = parse_json(read_bytes(file, LONGEST_CONFIG))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); copy the checkpoint again.") from error
    found = told.get("sharded_backend") if isinstance(told, dict) else None
    return found if isinstance(found, str) else ""


def check_backend(folder: Path) -> None:
    """Raises InputError where a folder of Megatron is of a kind that is not read."""
    backend = backend_of(folder)
    if backend not in ("", _BACKEND):
        raise InputError(
            f"{folder} is a checkpoint of Megatron of the kind {backend!r}, and joma reads {_BACKEND!r}; "
            f"load it with Megatron and save it with --ckpt-format {_BACKEND}."
        )


class MegatronShard(DistributedShard):
    """A folder that Megatron saved with ``torch_dist``, layer by layer.

    Args:
        folder: where ``.metadata``, ``metadata.json`` and ``common.pt`` lie.

    Raises:
        InputError: see ``DistributedShard``; or ``common.pt`` would run code.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        common = pickled_content(folder / _COMMON) if (folder / _COMMON).is_file() else {}
        self.counts = counts_of(common)
        self.config = _config(common)
        self._stacked: dict[str, tuple[str, int]] = {}
        entries: dict[str, TensorEntry] = {}
        for name, entry in self.entries.items():
            found = _STACK.fullmatch(name)
            if found is None or not entry.shape:
                entries[name] = entry
                continue
            for number in range(entry.shape[0]):
                own = f"{found[1]}.{number}.{found[2]}"
                self._stacked[own] = name, number
                entries[own] = TensorEntry(own, entry.shape[1:], entry.dtype, entry.file, entry.problem)
        self._halves = _halves(entries)
        self.entries = entries

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """One tensor of one layer."""
        if name in self._halves:
            whole = self.entries[name]
            halves = [self._read_stored(half) for half in self._halves[name]]
            size = sum(half.numel() * half.element_size() for half in halves)
            tensor = (room or Room()).take(size).view(halves[0].dtype).reshape(whole.shape)
            for into, half in zip(tensor.chunk(2), halves, strict=True):
                into.copy_(half)
            return tensor
        return self._read_stored(name, room)

    def _read_stored(self, name: str, room: Room | None = None) -> Tensor:
        if name not in self._stacked:
            return super().read(name, room)
        stored, number = self._stacked[name]
        shape = self.stored[stored].shape
        box = self.read_box(stored, (number, *(0 for _ in shape[1:])), (1, *shape[1:]), room)
        return box.reshape(shape[1:])


def _halves(entries: dict[str, TensorEntry]) -> dict[str, tuple[str, str]]:
    """Gate and lower matrix that lie apart are one tensor, as their siblings are: its name -> theirs."""
    found: dict[str, tuple[str, str]] = {}
    for name in list(entries):
        half = _HALF.fullmatch(name)
        other = f"{half[1]}_v" if half and half[2] == "w" else ""
        if half is None or other not in entries or entries[other].shape != entries[name].shape:
            continue
        gate, lower = entries.pop(name), entries.pop(other)
        shape = (2 * gate.shape[0], *gate.shape[1:])
        whole = TensorEntry(half[1], shape, gate.dtype, gate.file, gate.problem or lower.problem)
        entries[half[1]] = whole
        found[half[1]] = name, other
    return found


def _config(common: Any) -> dict[str, Json]:
    """What the arguments of the training say of the model's sizes."""
    given = common.get("args") if isinstance(common, Mapping) else None
    told = given.state if isinstance(given, Inert) else given
    if not isinstance(told, Mapping):
        return {}
    sizes: dict[str, Json] = {}
    for key, name in _SETTINGS.items():
        if type(value := told.get(key)) is int and value > 0:
            sizes[name] = value
    if told.get("group_query_attention") is False:
        sizes.pop("num_key_value_heads", None)
    return sizes

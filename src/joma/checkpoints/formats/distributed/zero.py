"""Checkpoints of DeepSpeed: the weights of ZeRO's stages 1 and 2, the pieces of stage 3, universal folders.

Stages 1 and 2 keep whole weights in one file of rank 0. In stage 3 every rank keeps a piece of each
parameter: the float32 copies lie one after the other in the flat groups of the optimizer's state, in the
order and shapes of ``param_shapes``. Each parameter is cut into as many equal pieces as there are ranks, the
last one padded (``deepspeed/utils/zero_to_fp32.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joma.checkpoints.formats.readers import TYPE_NAMES, PickledShard, pickled_content
from joma.checkpoints.formats.shard import Room, Shard, TensorEntry
from joma.checkpoints.formats.state_dicts import counts_of
from joma.core.errors import InputError, abbreviate
from joma.core.files import read_bytes

_STATES = re.compile(r"(?:[a-z0-9]+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt")
_WHOLE = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_LAYER = re.compile(r"layer_\d+.*model_\d*-?model_states\.pt|layer_\d+-model_states\.pt")
_EXPERT = re.compile(r".*expert_\d+_mp_rank_\d+_model_states\.pt|expp_rank_.*")
_STEP = re.compile(r"global_step\d+(?:_universal)?")
_LONGEST_TAG = 1 << 10
_UNIVERSAL = "zero/*/fp32.pt"
_CONVERT = "convert it with DeepSpeed's ds_to_universal.py and give the folder that it writes"
_Pieces = list[Tensor]


def is_zero(folder: Path) -> bool:
    """Whether the files of DeepSpeed lie right in a folder."""
    return bool(_state_names(folder)) or any(folder.glob(_UNIVERSAL))


def zero_folder(folder: Path) -> Path | None:
    """The folder itself, or the one below that ``latest`` names, or the only one that is DeepSpeed's.

    Raises:
        InputError: ``latest`` names none, or there are several and nothing says which.
    """
    if is_zero(folder):
        return folder
    found = sorted(child for child in folder.iterdir() if child.is_dir() and is_zero(child))
    if not found:
        return None
    for name in ("latest", "latest_universal"):
        if (folder / name).is_file():
            tag = read_bytes(folder / name, _LONGEST_TAG).decode("utf-8", "replace").strip()
            if folder / tag not in found or Path(tag).name != tag:
                raise InputError(
                    f"{folder / name} names {abbreviate(tag)}, which is no checkpoint beside it; give the "
                    "folder that is meant."
                )
            return folder / tag
    if len(found) > 1:
        raise InputError(
            f"{folder} holds several checkpoints of DeepSpeed, {found[0].name} and {found[1].name}, and no "
            "file latest; give the folder that is meant."
        )
    return found[0]


def zero_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a folder of DeepSpeed, by their names alone."""
    names = _state_names(folder)
    whole = [name for name in names if _WHOLE.fullmatch(name)]
    universal = sorted(folder.glob(_UNIVERSAL))
    return universal or [folder / name for name in (whole or sorted(names))]


def open_zero(folder: Path) -> Shard:
    """The weights of a folder of DeepSpeed.

    Raises:
        InputError: ranks are missing, matrices are cut over tensor-parallel ranks, or files are damaged or
            hostile.
    """
    if any(folder.glob(_UNIVERSAL)):
        return UniversalShard(folder)
    names = _state_names(folder)
    if expert := next((name for name in names if _EXPERT.fullmatch(name)), None):
        raise InputError(f"{folder} keeps its experts in files of their own ({expert}); {_CONVERT}.")
    if layer := next((name for name in names if _LAYER.fullmatch(name)), None):
        raise InputError(
            f"{folder} was saved by a pipeline, its layers by number alone ({layer}); convert it with the "
            "tool of the code that trained it."
        )
    cut = {int(m[1]) for n in names if (m := _WHOLE.fullmatch(n))}
    cut |= {int(m[2]) for n in names if (m := _STATES.fullmatch(n))}
    if len(cut) > 1:
        raise InputError(
            f"{folder} holds matrices that are cut over {len(cut)} tensor-parallel ranks "
            f"(mp_rank_{min(cut):02d} to mp_rank_{max(cut):02d}); {_CONVERT}."
        )
    whole = sorted(name for name in names if _WHOLE.fullmatch(name))
    if whole:
        return PickledShard(folder / whole[0])
    return ZeroShard(folder)


def _state_names(folder: Path) -> list[str]:
    patterns = (_STATES, _WHOLE, _LAYER, _EXPERT)
    return [
        file.name
        for file in folder.iterdir()
        if file.name.endswith("_states.pt") and any(one.fullmatch(file.name) for one in patterns)
    ]


class _PiecesShard(Shard):
    """Tensors that are made of pieces which lie, mapped, in several files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces: dict[str, _Pieces] = {}
        self.entries: dict[str, TensorEntry] = {}

    def _add(self, name: str, shape: tuple[int, ...], pieces: _Pieces, file: Path) -> None:
        """A tensor whose entries are those of the pieces, one after the other; the rest is padding."""
        pieces = pieces or [torch.empty(0)]
        dtype = pieces[0].dtype
        there = sum(piece.numel() for piece in pieces)
        if (
            there < math.prod(shape)
            or any(p.dtype != dtype or p.is_meta for p in pieces)
            or dtype not in TYPE_NAMES
        ):
            raise InputError(
                f"{file}: {abbreviate(name)} of shape {shape} has {there:,} entries of {dtype} in "
                f"{len(pieces)} pieces; copy or save the checkpoint again."
            )
        self._pieces[name] = pieces
        self.entries[name] = TensorEntry(name, shape, TYPE_NAMES[dtype], file)

    def _add_frozen(self, files: Sequence[Path], first: Mapping[Any, Any]) -> None:
        """The parameters that are not trained: a piece of each lies among the model's states of each rank.

        Args:
            files: the model's states, rank by rank.
            first: what the first of them holds.
        """
        shapes = _shapes(files[0], [first.get("frozen_param_shapes") or {}])
        states = [first, *(_as_mapping(pickled_content(file)) for file in files[1:] if shapes)]
        for name, shape in shapes.items():
            pieces = [_as_mapping(state.get("frozen_param_fragments")).get(name) for state in states]
            if not all(isinstance(piece, Tensor) for piece in pieces):
                raise InputError(
                    f"{files[0]}: a rank lacks its piece of {abbreviate(name)}; copy the files again."
                )
            self._add(name, shape, [piece for piece in pieces if isinstance(piece, Tensor)], files[0])

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """One tensor, put together from its pieces, in ``room`` where there is one."""
        entry, pieces = self.entries[name], self._pieces[name]
        size, done = math.prod(entry.shape), 0
        dtype = pieces[0].dtype
        tensor = (room or Room()).take(size * dtype.itemsize).view(dtype)
        for piece in pieces:
            count = min(piece.numel(), size - done)
            tensor[done : done + count] = piece.reshape(-1)[:count]
            done += count
        return tensor.reshape(entry.shape)


class ZeroShard(_PiecesShard):
    """A folder of ZeRO's stage 3.

    Args:
        folder: where the states of the model and of the optimizer lie, one file of each per rank.

    Raises:
        InputError: ranks are missing, or what they hold does not fit together.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "zero_pp_rank_*")
        found = {
            (m[3], int(m[1])): folder / n for n in sorted(_state_names(folder)) if (m := _STATES.fullmatch(n))
        }
        if ("model", 0) not in found:
            raise InputError(
                f"{folder} lacks the model's states of rank 0 (zero_pp_rank_0_mp_rank_00_model_states.pt), "
                "which tell the shapes; copy the files of all ranks."
            )
        first = pickled_content(found["model", 0])
        self.counts = counts_of(first)
        ranks = self._ranks(folder, found)
        optimizers = [_optimizer(found["optim", rank]) for rank in range(ranks)]
        told = optimizers[0].get("partition_count")
        if isinstance(told, int) and told != ranks:
            raise InputError(
                f"{folder} was saved by {told} ranks, and the optimizer's states of {ranks} are there; copy "
                "the files of all ranks."
            )
        flat = [_groups(found["optim", rank], one) for rank, one in enumerate(optimizers)]
        self._add_trained(found["optim", 0], _shapes(found["model", 0], first.get("param_shapes")), flat)
        self._add_frozen([found["model", rank] for rank in range(ranks)], first)
        for name, tensor in _buffers(first):
            if name not in self.entries and tensor.dtype in TYPE_NAMES:
                self._add(name, tuple(tensor.shape), [tensor], found["model", 0])
        if not self.entries:
            raise InputError(f"{folder} holds no parameters by name; save it again.")

    def _ranks(self, folder: Path, found: Mapping[tuple[str, int], Path]) -> int:
        """How many ranks there are; each has both its files."""
        ranks = 1 + max(rank for _, rank in found)
        for kind in ("optim", "model"):
            missing = [rank for rank in range(ranks) if (kind, rank) not in found]
            if missing:
                some = ", ".join(map(str, missing[:3])) + ", ..." * (len(missing) > 3)
                raise InputError(
                    f"{folder} lacks the {kind} states of rank {some} ({len(missing)} of {ranks} ranks), and "
                    "each holds a piece of every parameter; copy the files of all ranks."
                )
        return ranks

    def _add_trained(
        self, file: Path, shapes: Mapping[str, tuple[int, ...]], flat: Sequence[_Pieces]
    ) -> None:
        offset, ranks = 0, len(flat)
        for name, shape in shapes.items():
            each = math.ceil(math.prod(shape) / ranks)
            self._add(name, shape, [p for own in flat for p in _cut(own, offset, each)], file)
            offset += each
        held = sum(group.numel() for group in flat[0])
        if offset != held:
            raise InputError(
                f"{file}: the parameters take {offset:,} entries of each rank, and there are {held:,}; the "
                "states of model and optimizer are not of one checkpoint."
            )


class UniversalShard(_PiecesShard):
    """A universal folder: each parameter's float32 copy is a file of its own, ``zero/NAME/fp32.pt``.

    Args:
        folder: where ``zero`` lies, and the states of the model beside it, which hold what is not trained.

    Raises:
        InputError: a file is damaged or hostile, or no shape is told of what lies flat.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "zero")
        beside = _model_states(folder)
        state = _as_mapping(pickled_content(beside[0])) if beside else {}
        self.counts = counts_of(state)
        shapes = _shapes(beside[0], state.get("param_shapes") or []) if beside else {}
        for file in sorted(folder.glob(_UNIVERSAL)):
            name, content = file.parent.name, pickled_content(file)
            tensor = content if isinstance(content, Tensor) else _as_mapping(content).get("param")
            if not isinstance(tensor, Tensor):
                raise InputError(f"{file} holds no parameter; convert the checkpoint again.")
            shape = shapes.get(name, tuple(tensor.shape)) if tensor.ndim == 1 else tuple(tensor.shape)
            self._add(name, shape, [tensor], file)
        if beside and _STATES.fullmatch(beside[0].name):
            self._add_frozen(beside, state)
        for name, tensor in _buffers(state):
            if name not in self.entries and tensor.dtype in TYPE_NAMES:
                self._add(name, tuple(tensor.shape), [tensor], beside[0])


def _model_states(folder: Path) -> list[Path]:
    """The files of the model's states beside a universal folder, rank by rank."""
    numbers = {
        int(told[1]): folder / name
        for name in _state_names(folder)
        if (told := _STATES.fullmatch(name) or _WHOLE.fullmatch(name))
        and not name.endswith("_optim_states.pt")
    }
    return [numbers[rank] for rank in sorted(numbers)]


def _as_mapping(content: Any) -> Mapping[Any, Any]:
    return content if isinstance(content, Mapping) else {}


def _optimizer(file: Path) -> Mapping[Any, Any]:
    state = _as_mapping(_as_mapping(pickled_content(file)).get("optimizer_state_dict"))
    if not isinstance(state.get("fp32_flat_groups"), list | tuple):
        raise InputError(
            f"{file} holds no float32 pieces of the parameters (fp32_flat_groups), of which ZeRO's stage 3 "
            "is made; gather it first: python zero_to_fp32.py FOLDER OUTPUT"
        )
    return state


def _groups(file: Path, state: Mapping[Any, Any]) -> _Pieces:
    groups = list(state["fp32_flat_groups"])
    if not all(isinstance(one, Tensor) and one.ndim == 1 and not one.is_meta for one in groups):
        raise InputError(f"{file}: its flat groups are no vectors; copy or save the checkpoint again.")
    return groups


def _cut(groups: _Pieces, offset: int, count: int) -> Iterator[Tensor]:
    """So many entries of the groups, laid end to end, from this one on."""
    for group in groups:
        size = group.numel()
        if count > 0 and offset < size:
            taken = min(count, size - offset)
            yield group[offset : offset + taken]
            count -= taken
        offset = max(offset - size, 0)


def _shapes(file: Path, told: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters, group after group."""
    shapes: dict[str, tuple[int, ...]] = {}
    for group in told if isinstance(told, list | tuple) else [told]:
        for name, shape in _as_mapping(group).items():
            sides = tuple(shape) if isinstance(shape, tuple | list) else None
            if (
                not isinstance(name, str)
                or sides is None
                or not all(type(n) is int and n >= 0 for n in sides)
            ):
                raise InputError(f"{file}: the shape of {abbreviate(str(name))} is none; save it again.")
            shapes[name] = sides
    return shapes


def _buffers(state: Any) -> Iterator[tuple[str, Tensor]]:
    """What the model's state holds whole."""
    for name, tensor in _as_mapping(_as_mapping(state).get("module")).items():
        if isinstance(name, str) and isinstance(tensor, Tensor) and tensor.numel() and not tensor.is_meta:
            yield name, tensor

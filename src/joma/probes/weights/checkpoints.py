"""Weights on disk, one tensor at a time: safetensors, PyTorch's .bin and .pt, GGUF; whole or in shards.

Nothing is executed and no model is built. Names, shapes and types are read first; a tensor is copied
when it is asked for and nothing else is kept, so that memory is bounded by the largest tensor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from joma.errors import InputError, nearest
from joma.probes.weights.shard import Room, Shard, TensorEntry

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class Checkpoint:
    """The tensors of a folder or file, by name.

    Args:
        path: the folder or file it came from.
        shards: its files.
        config: the model's ``config.json``, where there is one.
    """

    def __init__(self, path: Path, shards: list[Shard], config: dict[str, Any] | None) -> None:
        self.path, self.config = path, config
        self.shards: dict[str, Shard] = {}
        self.entries: dict[str, TensorEntry] = {}
        for shard in shards:
            for name, entry in shard.entries.items():
                if name in self.shards:
                    raise InputError(
                        f"{path}: the tensor {name!r} stands in both {self.shards[name].path.name} and "
                        f"{shard.path.name}; give the file that is meant."
                    )
                self.shards[name], self.entries[name] = shard, entry

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """A copy of the tensor ``name``; the file stays neither open nor mapped for its sake.

        With a ``room`` it may lie there, and is overwritten when the next tensor is read into it; no fresh
        memory is asked of the system then.

        Raises:
            InputError: no such tensor, or the file is damaged there.
        """
        if name not in self.shards:
            raise InputError(f"{self.path} holds no tensor {name!r}; {nearest(name, self.entries)}")
        return self.shards[name].read(name, room)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Find the weights in a folder (or take the file) and read their names, shapes and types.

    In a folder, an index of shards comes before a single file, safetensors before .bin, and these
    before other names. A shard that the index does not name is not read.

    Damage is told where it shows: a header that contradicts itself or the file's size, a missing shard,
    an archive without its directory. safetensors and GGUF carry no checksums, and those of .bin files may be
    left out by their writer, so a flipped bit *inside* a tensor is only seen where it makes an entry NaN
    or infinite.

    Raises:
        InputError: nothing there, nothing known there, or a file that is damaged or would run code.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(
            f"{path} does not exist; give a folder or file of weights (a model of a hub must be "
            "downloaded first: huggingface-cli download NAME --local-dir FOLDER)."
        )
    if path.is_file():
        if path.name.endswith(".index.json"):
            return Checkpoint(path.parent, _sharded(path), _config(path.parent))
        return Checkpoint(path, [open_shard(file) for file in _gguf_parts(path)], _config(path.parent))
    for name in _INDICES:
        if (path / name).is_file():
            return Checkpoint(path, _sharded(path / name), _config(path))
    return Checkpoint(path, [open_shard(file) for file in _files_of(path)], _config(path))


def _files_of(folder: Path) -> list[Path]:
    for name in _SINGLE:
        if (folder / name).is_file():
            return [folder / name]
    for suffixes in ((".safetensors",), (".gguf",), _PICKLED):
        files = sorted(file for file in folder.iterdir() if file.suffix in suffixes)
        if suffixes == (".gguf",) and files:
            return _gguf_parts(files[0])
        if files:
            return files
    if any(folder.rglob("*.distcp")):
        raise InputError(
            f"{folder} is a distributed checkpoint of PyTorch (.distcp); convert it first: "
            "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt"
        )
    raise InputError(
        f"{folder} holds no weights (no .safetensors, .bin, .pt or .gguf file); give the folder that does."
    )


def _gguf_parts(path: Path) -> list[Path]:
    """All parts of a GGUF file that is split as NAME-00001-of-00003.gguf; else the file alone."""
    stem, dash, total = path.stem.rpartition("-of-")
    base, _, number = stem.rpartition("-")
    if path.suffix != ".gguf" or not dash or not (total.isdigit() and number.isdigit()):
        return [path]
    parts = [path.with_name(f"{base}-{part:05d}-of-{total}.gguf") for part in range(1, int(total) + 1)]
    for part in parts:
        if not part.is_file():
            raise InputError(
                f"{part} is missing of {int(total)} parts of this checkpoint; download it again."
            )
    return parts


def _sharded(index: Path) -> list[Shard]:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
        weight_map = {str(name): str(file) for name, file in content["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{index} is no index of shards ({type(error).__name__}: {error}); download it again."
        ) from error
    shards = []
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise InputError(f"{index} names {name!r}, which is outside its folder; do not trust this index.")
        if not (index.parent / name).is_file():
            raise InputError(f"{index.parent / name} is missing, though {index.name} names it; download it.")
        shards.append(open_shard(index.parent / name))
    held = {name for shard in shards for name in shard.entries}
    for name, file in weight_map.items():
        if name not in held:
            raise InputError(f"{index.parent / file} lacks {name!r}, which {index.name} puts there.")
    return shards


def _config(folder: Path) -> dict[str, Any] | None:
    file = folder / "config.json"
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); download it again or remove it.") from error
    return content if isinstance(content, dict) else None


def open_shard(path: Path) -> Shard:
    """One file, by its suffix.

    Raises:
        InputError: an unknown suffix, or a file that is damaged or would run code.
    """
    from joma.probes.weights import formats as shards

    if path.suffix == ".safetensors":
        return shards.SafetensorsShard(path)
    if path.suffix == ".gguf":
        return shards.GgufShard(path)
    if path.suffix in _PICKLED:
        return shards.PickledShard(path)
    raise InputError(
        f"{path}: the suffix {path.suffix!r} is not one of a checkpoint; give a .safetensors, .bin, .pt, "
        ".pth, .ckpt or .gguf file, or their folder."
    )

"""Weights on disk, one tensor at a time: safetensors, PyTorch's .bin and .pt, GGUF; whole or in shards.

Nothing is executed and no model is built. Names, shapes and types are read first; a tensor is copied
when it is asked for and nothing else is kept, so that memory is bounded by the largest tensor.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from torch import Tensor

from joma.checkpoints.effective import Weight, weights_in
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.distributed.find import gathered_shards
from joma.checkpoints.formats.distributed.metadata import METADATA, SUFFIX
from joma.checkpoints.formats.folders import GATHER_RANKS, are_slices, check_whole, rank_in, weight_files
from joma.checkpoints.formats.foreign import FOREIGN_SUFFIXES, name_foreign
from joma.checkpoints.formats.readers import GgufShard, PickledShard, SafetensorsShard
from joma.checkpoints.formats.shard import Room, Shard, TensorEntry
from joma.core.errors import InputError, nearest
from joma.core.files import LONGEST_CONFIG, LONGEST_INDEX, Json, parse_json, read_bytes, regular

_SINGLE = ("model.safetensors", "pytorch_model.bin")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_OF_TRAINING = re.compile(
    r"(rng_state|scheduler|optimizer|training_args|random_states|scaler|trainer_state|sampler)\w*\.|.*_optim_states\."
    r"|.*_model_states\.|model_optim_rng\."
)


class Checkpoint:
    """The tensors of a folder or file, by name: as they are stored, and as the model uses them.

    Args:
        path: the folder or file it came from.
        shards: its files.
        config: the model's ``config.json``, where there is one.
    """

    def __init__(self, path: Path, shards: list[Shard], config: Config | None) -> None:
        self.path = path
        self.config = config if config is not None else next((s.config for s in shards if s.config), None)
        self.shards: dict[str, Shard] = {}
        self.entries: dict[str, TensorEntry] = {}
        self.asides = {where: aside for shard in shards for where, aside in shard.asides.items()}
        for shard in shards:
            for name, entry in shard.entries.items():
                if name in self.shards:
                    if are_slices(self.shards[name].path.name, shard.path.name):
                        raise InputError(
                            f"{path}: {self.shards[name].path.name} and {shard.path.name} hold slices of the "
                            f"same tensors ({name!r}), one per rank; {GATHER_RANKS}."
                        )
                    raise InputError(
                        f"{path}: the tensor {name!r} stands in both {self.shards[name].path.name} and "
                        f"{shard.path.name}; give the file that is meant if it holds a whole model (joma "
                        f"track takes a series of such), or if they hold slices of one, {GATHER_RANKS}."
                    )
                self.shards[name], self.entries[name] = shard, entry

    @cached_property
    def weights(self) -> dict[str, Weight]:
        """What the model multiplies by, made of one stored tensor or of several."""
        return weights_in(self.entries, self.config)

    def read(self, name: str, room: Room | None = None) -> Tensor:
        """A copy of the stored tensor ``name``; the file stays neither open nor mapped for its sake.

        With a ``room`` it may lie there, and is overwritten when the next tensor is read into it; no fresh
        memory is asked of the system then.

        Raises:
            InputError: no such tensor, or the file is damaged there.
        """
        if name not in self.shards:
            raise InputError(f"{self.path} holds no tensor {name!r}; {nearest(name, self.entries)}")
        return self.shards[name].read(name, room)

    def weight(self, name: str, room: Room | None = None) -> Tensor:
        """The numbers of the weight ``name`` (see ``weights``): plain, scales multiplied in, adapters
        added.

        Raises:
            InputError: no such weight, or one that has a problem.
        """
        if name not in self.weights:
            raise InputError(f"{self.path} holds no weight {name!r}; {nearest(name, self.weights)}")
        weight = self.weights[name]
        if weight.problem:
            raise InputError(f"{self.path}: {name}: {weight.problem}.")
        first, *others = weight.parts
        tensors = [self.read(first, room), *(self.read(part) for part in others)]
        return tensors[0] if weight.compose is None else weight.compose(tensors)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Find the weights in a folder (or take the file) and read their names, shapes and types.

    In a folder the files are those that ``from_pretrained`` takes: model.safetensors, else the shards of its
    index, else the same of pytorch_model.bin; then files of other names, safetensors first. A shard that the
    index does not name is not read, and what only training needs (optimizer, scheduler, random state) is not
    taken for weights. What many processes saved together, there or in a folder below (``.metadata`` and
    ``.distcp`` files of PyTorch, the states of DeepSpeed), is gathered matrix by matrix.

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
            "downloaded first: hf download NAME --local-dir FOLDER)."
        )
    if path.name == METADATA:
        path = path.parent
    if path.is_file():
        if path.name.endswith(".index.json"):
            return Checkpoint(path.parent, _shards_of_index(path), _config(path.parent))
        shards = [open_shard(file) for file in _gguf_parts(path)]
        if rank_in(path.name) is not None:
            beside = [file for file in path.parent.iterdir() if are_slices(path.name, file.name)]
            sizes = _config(path.parent) or _config(path.parent, "params.json")
            check_whole(path, shards[0], [open_shard(file) for file in sorted(beside)], sizes)
        return Checkpoint(path, shards, _config(path.parent))
    if gathered := gathered_shards(path):
        place = gathered[0].path.parent
        return Checkpoint(path, gathered, _config(path) or _config(place) or _config(place.parent))
    for single in _SINGLE:
        if (path / single).is_file():
            return Checkpoint(path, [open_shard(path / single)], _config(path))
        if (path / f"{single}.index.json").is_file():
            return Checkpoint(path, _shards_of_index(path / f"{single}.index.json"), _config(path))
    files = _files_of(path)
    shards = [open_shard(file) for file in files]
    if len(files) == 1 and rank_in(files[0].name) is not None:
        check_whole(files[0], shards[0], [], _config(path) or _config(path, "params.json"))
    return Checkpoint(path, shards, _config(path))


def _files_of(folder: Path) -> list[Path]:
    if chosen := weight_files([file.name for file in folder.iterdir() if file.is_file()]):
        return [folder / name for name in chosen]
    for suffixes in ((".safetensors",), (".gguf",), _PICKLED):
        files = sorted(
            file for file in folder.iterdir() if file.suffix in suffixes and not _OF_TRAINING.match(file.name)
        )
        if suffixes == (".gguf",) and files:
            return _gguf_parts(files[0])
        if files:
            return files
    if named := name_foreign(folder):
        raise InputError(f"{folder} {named}.")
    raise InputError(
        f"{folder} holds no weights (no .safetensors, .bin, .pt or .gguf file); give the folder that does."
    )


def _gguf_parts(path: Path) -> list[Path]:
    """All parts of a GGUF file that is split as NAME-00001-of-00003.gguf; else the file alone."""
    named = re.fullmatch(r"(.*)-[0-9]+-of-([0-9]{1,18})", path.stem)
    if path.suffix != ".gguf" or not named:
        return [path]
    base, total = named.groups()
    parts = []
    for number in range(1, int(total) + 1):  # one by one: a name may promise more than memory holds
        parts.append(path.with_name(f"{base}-{number:05d}-of-{total}.gguf"))
        if not parts[-1].is_file():
            raise InputError(
                f"{parts[-1]} is missing of {int(total)} parts of this checkpoint; download it again."
            )
    return parts


def _shards_of_index(index: Path) -> list[Shard]:
    text = read_bytes(index, LONGEST_INDEX)
    try:
        content = parse_json(text)
        named = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(named, dict):
            raise ValueError("it has no weight_map")
    except ValueError as error:
        raise InputError(f"{index} is not an index of shards ({error}); download it again.") from error
    weight_map = {str(name): str(file) for name, file in named.items()}
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


def _config(folder: Path, name: str = "config.json") -> dict[str, Json] | None:
    file = folder / name
    if not file.is_file():
        return None
    text = read_bytes(file, LONGEST_CONFIG)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); download it again or remove it.") from error
    return content if isinstance(content, dict) else None


def open_shard(path: Path) -> Shard:
    """One file.

    Raises:
        InputError: no file of weights, no regular file, or one that is damaged or would run code.
    """
    regular(path)
    if path.suffix == SUFFIX:
        raise InputError(f"{path} is one of the files of a distributed checkpoint; give their folder.")
    if path.suffix in FOREIGN_SUFFIXES:
        raise InputError(f"{path} {FOREIGN_SUFFIXES[path.suffix]}.")
    kind = kind_of(path)
    if kind == "safetensors":
        return SafetensorsShard(path)
    if kind == "gguf":
        return GgufShard(path)
    if kind == "pickle":
        return PickledShard(path)
    raise InputError(
        f"{path}: the suffix {path.suffix!r} is not one of a checkpoint, nor does it begin as one; give a "
        ".safetensors, .bin, .pt, .pth, .ckpt or .gguf file, or their folder."
    )


def kind_of(path: Path) -> str:
    """``safetensors``, ``gguf``, ``pickle`` or nothing: by the suffix, of any other by its first bytes."""
    if path.suffix in (".safetensors", ".gguf"):
        return path.suffix[1:]
    if path.suffix in _PICKLED:
        return "pickle"
    with open(path, "rb") as file:
        begin = file.read(9)
    if begin.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return "pickle"
    if begin.startswith(b"GGUF"):
        return "gguf"
    length = int.from_bytes(begin[:8], "little")
    return "safetensors" if begin[8:] == b"{" and length < path.stat().st_size else ""

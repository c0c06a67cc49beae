"""Which files of a folder are one checkpoint's weights, and which are slices of them that ranks saved."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.shard import Shard
from joma.checkpoints.formats.slices import slice_by_shapes
from joma.core.errors import InputError

_PARTS = re.compile(r"(model|pytorch_model)[-.]\d{5}-of-\d{5}\.(safetensors|bin)")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_MODEL = re.compile(r"model\.(safetensors|bin|pt|pth|ckpt)")
_DEEPSPEED = re.compile(r"mp_rank_\d+_model_states\.pt")
_OTHER = re.compile(
    r"(?!consolidated|adapter|tokenizer)(?!.*_(model|optim)_states\.)"
    r"(?!.*(?<![a-z])(optimi[sz]er|optim|scheduler|scaler|rng_state|random_states|training_args|trainer_state|sampler)"
    r"(?![a-z]))[\w.=+-]+\.(safetensors|bin|pt|pth|ckpt)"
)
_RANK = re.compile(
    r"(?<![a-z])(?:ranks?|tp|pp|mp|dp|consolidated|shard|slice|part|worker|proc(?:ess)?|gpu|device|node)[-_.]?(\d+)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
GATHER_RANKS = (
    "gather them first (load them on all ranks and save the full state dict, in one file or in shards)"
)


def weight_files(names: Collection[str]) -> list[str]:
    """The names of one checkpoint's weights: safetensors before .bin, never both, nothing consolidated.

    Shards count where their index is among the names. Beside ``model.*`` no other file is of the weights. The
    one file that DeepSpeed's ranks share when they split no weights is the weights.
    """
    for suffix, index in (
        ("safetensors", "model.safetensors.index.json"),
        ("bin", "pytorch_model.bin.index.json"),
    ):
        parts = sorted(n for n in names if (m := _PARTS.fullmatch(n)) and m.group(2) == suffix)
        if index in names and parts:
            return parts
        whole = _WHOLE[suffix == "bin"]
        if whole in names:
            return [whole]
    models = [name for name in names if _MODEL.fullmatch(name)]
    others = sorted(models or (name for name in names if _OTHER.fullmatch(name)))
    for suffix in SUFFIXES:
        found = [name for name in others if PurePosixPath(name).suffix == suffix]
        if found:
            return found
    states = [name for name in names if name.endswith("_model_states.pt")]
    return states if len(states) == 1 and _DEEPSPEED.fullmatch(states[0]) else []


def rank_in(name: str) -> int | None:
    """The number of the rank that saved a file, where its name gives one."""
    told = [int(match[1]) for match in _RANK.finditer(PurePosixPath(name).stem)]
    return max(told, default=None)


def are_slices(one: str, other: str) -> bool:
    """Whether the names of two files differ only in numbers and give those of ranks."""
    alike = _NUMBER.sub("*", one) == _NUMBER.sub("*", other)
    return alike and one != other and rank_in(one) is not None


def check_whole(path: Path, shard: Shard, siblings: Collection[Shard], config: Config | None) -> None:
    """Raises InputError where a file that was given alone is a rank's slice of every matrix.

    Args:
        path: the file.
        shard: what is in it.
        siblings: the files beside it whose names differ in a rank's number.
        config: the sizes of the whole model, where they are at hand.
    """
    rank = rank_in(path.name)
    shared = [one for one in siblings if set(one.entries) & set(shard.entries)]
    if shared:
        raise InputError(
            f"{path} and {shared[0].path.name} beside it hold slices of the same tensors, one per rank; "
            f"{GATHER_RANKS}."
        )
    world = shard.counts.get("mp_world_size")
    if not siblings and (rank or (world or 1) > 1):
        raise InputError(
            f"{path} is by its name what rank {rank} saved, a slice of every matrix, and the files of "
            f"the other ranks are not beside it; {GATHER_RANKS}."
        )
    if siblings or world:
        return
    if told := slice_by_shapes({name: entry.shape for name, entry in shard.entries.items()}, config):
        raise InputError(
            f"{path} is by its name what rank {rank} saved, and {told}; {GATHER_RANKS}, or give the file a "
            "name without the number if it holds the whole model."
        )

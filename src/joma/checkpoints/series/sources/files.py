"""Which files of a repository or folder are one checkpoint's weights, and no others."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

_PARTS = re.compile(r"(model|pytorch_model)[-.]\d{5}-of-\d{5}\.(safetensors|bin)")
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_OTHER = re.compile(
    r"(?!consolidated|adapter|tokenizer)(?!.*(?<![a-z])(optimi[sz]er|optim|scheduler|scaler|rng_state|training_args)"
    r"(?![a-z]))[\w.=+-]+\.(safetensors|bin|pt|pth|ckpt)"
)


def is_plain_path(path: str) -> bool:
    """Whether a name that was read from elsewhere stays below the folder it is put in."""
    parts = path.split("/")
    return "\\" not in path and "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def weight_files(names: Collection[str]) -> list[str]:
    """The names of one checkpoint's weights: safetensors before .bin, never both, nothing consolidated.

    Shards count where their index is among the names.
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
    others = sorted(name for name in names if _OTHER.fullmatch(name))
    for suffix in (".safetensors", ".bin", ".pt", ".pth", ".ckpt"):
        found = [name for name in others if PurePosixPath(name).suffix == suffix]
        if found:
            return found
    return []


def why_none(names: Collection[str]) -> str:
    """What a folder without weights holds instead, and what would gather it."""
    if any(PurePosixPath(name).name.startswith("adapter_model.") for name in names):
        return "holds an adapter alone; merge it into its model (peft: merge_and_unload) and save that"
    if any(name.endswith(".distcp") for name in names):
        return (
            "is a distributed checkpoint of PyTorch; gather it with: python -m "
            "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt"
        )
    if any(re.search(r"(zero_pp_rank|mp_rank)_\d+", name) for name in names):
        return "holds the shards of a DeepSpeed run; gather them with its zero_to_fp32.py"
    if any(re.search(r"(^|/)(__\d+_\d+|pytorch_model_fsdp\w*)", name) for name in names):
        return "holds the shards of an FSDP run; gather them with: accelerate merge-weights"
    return "holds no weights"

"""Which files of a repository or folder are one checkpoint's weights, and no others."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath, PureWindowsPath

from joma.checkpoints.formats.folders import weight_files as weight_files
from joma.core.files import parse_json


def is_plain_path(path: str) -> bool:
    """Whether a name that was read from elsewhere stays below the folder it is put in."""
    parts = path.split("/")
    steps = any(part in ("", ".", "..") for part in parts)
    return not (steps or "\\" in path or "\0" in path or PureWindowsPath(path).drive)


def weight_map(content: bytes) -> dict[str, str]:
    """Of an index, the file in which each tensor lies; nothing where it is none."""
    try:
        told = parse_json(content)
    except ValueError:
        return {}
    placed = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(placed, dict):
        return {}
    return {
        str(name): str(file) for name, file in placed.items() if PurePosixPath(str(file)).name == str(file)
    }


def why_none(names: Collection[str]) -> str:
    """What a folder without weights holds instead, and what would gather it."""
    if any(PurePosixPath(name).name.startswith("adapter_model.") for name in names):
        return "holds only an adapter; merge it into its model (peft: merge_and_unload) and save that"
    if any(name.endswith(".distcp") for name in names):
        return (
            "is a distributed checkpoint of PyTorch, which joma reads from a folder of this machine; "
            "download it (hf download NAME --revision REVISION --local-dir FOLDER) and give its folder"
        )
    if any(re.search(r"(zero_pp_rank|mp_rank)_\d+", name) for name in names):
        return "holds the shards of a DeepSpeed run; gather them with its zero_to_fp32.py"
    if any(re.search(r"(^|/)(__\d+_\d+|pytorch_model_fsdp\w*)", name) for name in names):
        return "holds the shards of an FSDP run; gather them with: accelerate merge-weights"
    return "holds no weights"

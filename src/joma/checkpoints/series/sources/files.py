"""Which files of a repository or folder are one checkpoint's weights, and no others."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

from joma.checkpoints.formats.folders import weight_files as weight_files


def is_plain_path(path: str) -> bool:
    """Whether a name that was read from elsewhere stays below the folder it is put in."""
    parts = path.split("/")
    return "\\" not in path and "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def why_none(names: Collection[str]) -> str:
    """What a folder without weights holds instead, and what would gather it."""
    if any(PurePosixPath(name).name.startswith("adapter_model.") for name in names):
        return "holds only an adapter; merge it into its model (peft: merge_and_unload) and save that"
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

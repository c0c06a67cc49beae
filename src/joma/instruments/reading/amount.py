"""How many weights a model's settings describe, held against what its files hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeGuard

import torch

from joma.checkpoints.checkpoint import Checkpoint
from joma.core.errors import InputError

_MOST_TIMES = 2
"""How many times the numbers that its files hold a model may have as weights: some share them."""
_DEEPEST = 1000
"""Layers of which no outline is made unless there are as many tensors."""


def check_amount(held: Checkpoint, config: Any, kind: Any, path: Path) -> None:
    """Refuse settings of a model of far more weights than the files hold, before they are drawn at random."""
    if getattr(config, "quantization_config", None) is not None:
        return  # several numbers lie in one element
    stored = sum(math.prod(entry.shape) for entry in held.entries.values())
    depth = max((size for name, size in config.to_dict().items() if _counts_layers(name, size)), default=0)
    if depth > _DEEPEST and depth > len(held.entries):
        wanted = f"{depth:,} layers"
    else:
        make = getattr(kind, "_from_config", None) or kind.from_config
        try:
            with torch.device("meta"), torch.random.fork_rng(devices=[]):
                number = sum(weight.numel() for weight in make(config).parameters())
        except Exception:  # told by whoever loads it
            return
        if number <= _MOST_TIMES * stored:
            return
        wanted = f"{number:,} weights"
    raise InputError(
        f"{path}: config.json describes a model of {wanted}, and the files hold {stored:,} numbers in "
        f"{len(held.entries):,} tensor(s); download it again."
    )


def _counts_layers(name: str, size: object) -> TypeGuard[int]:
    return isinstance(size, int) and "layer" in name and name.startswith(("num", "n_", "encoder", "decoder"))

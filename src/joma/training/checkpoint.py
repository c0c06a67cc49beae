"""A training state on disk: one safetensors file, checked as a whole, never unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from joma.core.errors import RunDirectoryError
from joma.core.files import whole_file

Row = dict[str, Any]
"""What is measured along a training, ready for a table."""


class Record(TypedDict):
    """What a checkpoint remembers beside its tensors."""

    step: int
    rows: list[Row]


_FORMAT = "joma training checkpoint 1"


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], record: Record) -> None:
    """Write tensors and a JSON-ready record, whole or not at all, with a digest over both."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(record)
    metadata = {"format": _FORMAT, "record": text, "sha256": _digest(contiguous, text)}
    with whole_file(path) as temporary:
        save_file(contiguous, temporary, metadata=metadata)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], Record]:
    """Read what ``save_checkpoint`` wrote.

    Raises:
        RunDirectoryError: the file is truncated, altered, or another program's.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise _damage_error(
            path, str(error).splitlines()[0] if str(error) else type(error).__name__
        ) from error
    if metadata.get("format") != _FORMAT:
        raise _damage_error(path, "it was not written by this version of joma")
    text = metadata.get("record", "")
    if metadata.get("sha256") != _digest(tensors, text):
        raise _damage_error(path, "its content does not match its digest")
    record: Record = json.loads(text)
    return tensors, record


def _damage_error(path: Path, reason: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"checkpoint {path} is damaged ({reason}); delete it to train this part anew "
        "(finished parts are kept), or run with --overwrite to start over."
    )


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

"""What every file of a checkpoint offers, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from joma.core.files import Json

ABSENT = "joma.absent"
"""Key of a safetensors file's metadata: name -> [type, shape] of tensors that stood beside those it holds.

What a matrix is, is told by what stands beside it too, so that a file of some tensors must know of the
others.
"""


class Room:
    """Memory that tensors are read into one after the other, so that it is asked for but once.

    Fresh memory for each costs as much as reading: the system clears it page by page.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """(size,) uint8, which the next call hands out again."""
        if size > len(self._bytes):
            self._bytes = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new one comes
            self._bytes = torch.empty(size, dtype=torch.uint8)
        return self._bytes[:size]

    def floats(self, shape: torch.Size) -> Tensor:
        """A float32 tensor of this shape, which the next call hands out again."""
        return self.take(4 * shape.numel()).view(torch.float32).reshape(shape)

    def as_floats(self, tensor: Tensor) -> Tensor:
        """The tensor itself if it is float32, else its copy here."""
        return tensor if tensor.dtype == torch.float32 else self.floats(tensor.shape).copy_(tensor)


class Rooms(dict[str, Room]):
    """Rooms by what they are for. A long run that keeps them asks for no fresh memory, which the system would
    hand out anew and could not take back where small things came to lie behind it."""

    def __missing__(self, name: str) -> Room:
        self[name] = Room()
        return self[name]


@dataclass(frozen=True)
class TensorEntry:
    """What a checkpoint says of one tensor without reading it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As stored: ``F32``, ``BF16``, ``Q4_1``, ..."""
    file: Path
    problem: str = ""
    """Why it cannot be read, though the rest of its file can: half a sentence."""


class Shard(ABC):
    """One file of a checkpoint."""

    path: Path
    entries: Mapping[str, TensorEntry]
    config: dict[str, Json] | None = None
    """What the file itself says of the model's sizes."""
    asides: Mapping[str, tuple[str, int]] = {}
    """What lies in it beside the weights and is like them: where, why it was not taken, how many entries."""
    counts: Mapping[str, int] = {}
    """The whole numbers that a training state tells of itself: ``iter_num``, ``global_step``, ..."""

    @abstractmethod
    def read(self, name: str, room: Room | None = None) -> Tensor:
        """A copy of one tensor, dequantised where the format quantises; it may lie in ``room``."""

"""What every file of a checkpoint offers, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class TensorEntry:
    """What a checkpoint says of one tensor without reading it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As stored: ``F32``, ``BF16``, ``Q4_1``, ..."""
    file: Path


class Shard(ABC):
    """One file of a checkpoint."""

    path: Path
    entries: Mapping[str, TensorEntry]

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A copy of one tensor, dequantised where the format quantises."""

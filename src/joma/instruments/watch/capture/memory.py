"""Where tensors lie: in which memory, and at which place of a feature axis there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Range = tuple[int, int]
Ranges = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a slice of features begins."""

    memory: int
    offset: int
    channels: Ranges
    """The learned feature axes there, as ranges of strides."""
    widths: Ranges
    """Those of an input."""


def same_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in one piece of memory."""
    return storage_of(one) == storage_of(other)


def storage_of(tensor: Tensor) -> int:
    """The identity of the memory that a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


def is_slice(tensor: Tensor) -> bool:
    """Whether a tensor is a part of what its memory holds."""
    return tensor.numel() * tensor.element_size() < tensor.untyped_storage().nbytes()


class Memory:
    """The memory of a tensor, while others keep it."""

    def __init__(self, tensor: Tensor) -> None:
        self._reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    def gone(self) -> bool:
        """Whether nobody keeps it any more."""
        return bool(self._reference.expired())  # type: ignore[no-untyped-call]

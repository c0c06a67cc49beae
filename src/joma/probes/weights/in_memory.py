"""The weights of a model in memory, with the face of a checkpoint on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from joma.errors import InputError, nearest
from joma.probes.weights.checkpoints import Checkpoint
from joma.probes.weights.shard import Room, Shard, TensorEntry

_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


class _Memory(Shard):
    """The parameters of a module; what is tied stands there once."""

    def __init__(self, model: nn.Module) -> None:
        self.path = Path(type(model).__name__)
        self.parameters = dict(model.named_parameters())
        self.entries = {
            name: TensorEntry(name, tuple(tensor.shape), _dtype(tensor), self.path)
            for name, tensor in self.parameters.items()
        }

    def read(self, name: str, room: Room | None = None) -> Tensor:
        if name not in self.parameters:
            raise InputError(f"{self.path} holds no weight {name!r}; {nearest(name, self.parameters)}")
        tensor = self.parameters[name]
        if tensor.is_meta or tensor.numel() == 0:
            raise InputError(
                f"{self.path}: the weight {name} is not in this process (it is on the meta device or sharded "
                "away); gather the model first."
            )
        return tensor.detach()


def weights_of(model: nn.Module) -> Checkpoint:
    """A model's parameters as a :class:`joma.probes.weights.checkpoints.Checkpoint`; nothing is copied."""
    config = getattr(model, "config", None)
    settings: dict[str, Any] | None = (
        config.to_dict() if config is not None and hasattr(config, "to_dict") else None
    )
    return Checkpoint(Path(type(model).__name__), [_Memory(model)], settings)


def _dtype(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return _NAMES.get(name, name)

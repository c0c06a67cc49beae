"""A model's inputs in the place of a text: taken as they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.instruments.reading.texts import TokenBatch

Input = Tensor | int | float | bool | str | None | list["Input"] | dict[str, "Input"]
"""One of a model's inputs."""


class ReadyBatch(TokenBatch):
    """A model's inputs by name, as they are given; without token ids, ``tokens`` is (batch, 0)."""

    inputs: Mapping[str, Input]

    @classmethod
    def of(cls, inputs: Mapping[str, Input]) -> ReadyBatch:
        """Take over what a model is called with.

        Raises:
            InputError: no tensor among it.
        """
        tensors = [value for value in inputs.values() if isinstance(value, Tensor) and value.ndim]
        if not tensors:
            raise InputError(
                f"a batch holds no tensor ({', '.join(inputs) or 'nothing'}); give a model's inputs."
            )
        tokens = inputs.get("input_ids")
        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            tokens = torch.empty(len(tensors[0]), 0, dtype=torch.int64)
        mask = inputs.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
            mask = torch.ones_like(tokens)
        batch = cls(tokens.long(), mask > 0)
        batch.inputs = inputs
        return batch

    def cpu(self) -> ReadyBatch:
        """The same with tokens and mask on the CPU."""
        batch = ReadyBatch(self.tokens.cpu(), self.mask.cpu())
        batch.inputs = self.inputs
        return batch


@dataclass(frozen=True)
class ReadyInputs:
    """A model's inputs in the place of a text: batches by name, of any kind."""

    batches: tuple[ReadyBatch, ...]

    @property
    def tokens(self) -> int:
        """How many tokens there are, padding left out; 0 for inputs of another kind."""
        return sum(int(batch.mask.sum()) for batch in self.batches)

    @property
    def length(self) -> int:
        """Tokens of the longest sample."""
        return max(batch.tokens.shape[1] for batch in self.batches)

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(len(batch.tokens) for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[TokenBatch]:
        return iter(self.batches)

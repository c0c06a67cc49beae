"""A model lent to a measurement: in evaluation mode meanwhile, and afterwards exactly as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor, nn

from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.families.matrices import Matrix
from joma.checkpoints.in_memory import weights_of
from joma.core.errors import InputError
from joma.instruments.reading.anatomy import Block, find_blocks
from joma.instruments.reading.ready import ReadyBatch
from joma.instruments.reading.texts import TokenBatch


class Anatomy:
    """A living model's blocks and weights, found once for all that ask."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @cached_property
    def weights(self) -> Checkpoint:
        """The weights as they are used: adapters added, quantised values restored."""
        return weights_of(self.model)

    @cached_property
    def blocks(self) -> list[Block]:
        """See ``joma.instruments.reading.anatomy.find_blocks``."""
        return find_blocks(self.model, self.weights)

    def choose(self, layers: Iterable[int] | None, where: str) -> list[Block]:
        """The blocks of these layers (in every stack that has them), all if None.

        Raises:
            InputError: no block known by its name, a layer that is not there.
        """
        if layers is None:
            return self.blocks
        wanted, there = set(layers), {block.layer for block in self.blocks}
        missing = sorted(wanted - there)
        if missing or not wanted:
            raise InputError(
                f"{where}: the model has no layer {missing[0] if missing else '(empty list)'}; its layers "
                f"are {min(there)} to {max(there)}."
            )
        return [block for block in self.blocks if block.layer in wanted]

    def take(self, matrix: Matrix) -> Tensor:
        """A matrix, (outputs, inputs), as it is used: a detached view or copy.

        Raises:
            InputError: a weight that is not there or holds nothing (sharded away, on the meta device).
        """
        return matrix.take(self.weights.weight(matrix.tensor))


@contextmanager
def leave_untouched(model: nn.Module, *, differentiable: bool = False) -> Iterator[None]:
    """Evaluation mode without gradients; or, if ``differentiable``, with those of activations alone.

    No parameter's ``.grad`` comes or goes. Training flags, module by module, and ``requires_grad``,
    parameter by parameter, are put back, also after an exception.
    """
    training = [(module, module.training) for module in model.modules()]
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        if differentiable:
            # Whatever a caller set: gradients flow through activations, and none is kept for a parameter.
            for parameter in wanting:
                parameter.requires_grad_(False)
            with torch.inference_mode(False), torch.enable_grad():
                yield
        else:
            with torch.no_grad():
                yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)
        for module, flag in training:
            module.training = flag


def input_embeddings(model: nn.Module) -> nn.Module | None:
    """What turns tokens into vectors: as a model of transformers says, or the only embedding there is."""
    getter = getattr(model, "get_input_embeddings", None)
    if callable(getter):
        found = getter()
        return found if isinstance(found, nn.Module) else None
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return embeddings[0] if len(embeddings) == 1 else None


def checked_batches(
    batches: Iterable[tuple[Tensor, Tensor]], model: nn.Module, where: str
) -> list[TokenBatch]:
    """The batches as a list, on the CPU. They hold token ids only, 9 bytes a token.

    Raises:
        InputError: no batch, or none with a token; tokens that are not (batch, length) int64, a mask of
            another shape or type; a token outside the model's vocabulary (and where).
    """
    kept: list[TokenBatch] = []
    vocabulary = getattr(input_embeddings(model), "num_embeddings", None)
    for number, batch in enumerate(batches):
        tokens, mask = batch
        if isinstance(batch, ReadyBatch) and not tokens.numel():
            raise InputError(f"{where}: batch {number} holds no token ids (input_ids); this needs a text.")
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise InputError(
                f"{where}: batch {number} has tokens of shape {tuple(tokens.shape)} and type {tokens.dtype}; "
                "give (batch, length) of int64."
            )
        if mask.shape != tokens.shape or mask.dtype != torch.bool:
            raise InputError(
                f"{where}: batch {number} has a mask of shape {tuple(mask.shape)} and type {mask.dtype}; "
                f"give bool of the tokens' shape {tuple(tokens.shape)}, False where there is padding."
            )
        tokens, mask = tokens.cpu(), mask.cpu()
        outside = tokens < 0 if vocabulary is None else (tokens < 0) | (tokens >= vocabulary)
        if bool(outside.any()):
            row, column = outside.nonzero()[0].tolist()
            raise InputError(
                f"{where}: token {int(tokens[row, column])} in batch {number} (row {row}, position {column}) "
                f"is outside the model's vocabulary of {vocabulary or 'non-negative numbers'}; use the "
                "model's own tokenizer."
            )
        kept.append(batch.cpu() if isinstance(batch, ReadyBatch) else TokenBatch(tokens, mask))
    if not any(bool(batch.mask.any()) for batch in kept):
        raise InputError(
            f"{where}: the text is empty; give at least one batch with a token that is no padding."
        )
    return kept

"""Running a model over batches of text, whatever its family calls its arguments."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from joma.errors import InputError, UnfinishedError
from joma.probes.reading.texts import TokenBatch


def run_batch(model: nn.Module, batch: TokenBatch, *, logits: bool = False) -> Any:
    """One forward pass, with the padding mask, without a cache; returns what the model returns.

    An encoder-decoder reads the text in both its parts. Without ``logits``, models that can leave the logits
    of all but the last position out do so.

    Raises:
        InputError: padding for a model that takes no mask.
        UnfinishedError: out of memory.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    tokens, mask = batch.tokens.to(device), batch.mask.to(device)
    names = set(inspect.signature(model.forward).parameters)
    given: dict[str, Any] = {}
    if "attention_mask" in names:
        # Whole windows need no mask, and without one the model takes its fastest route.
        given["attention_mask"] = None if bool(batch.mask.all()) else mask.to(torch.int64)
    elif not bool(batch.mask.all()):
        raise InputError(
            f"{type(model).__name__} takes no attention_mask, so windows of different lengths cannot share a "
            "batch; give a batch_tokens of one window, or windows of one length."
        )
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens
        given["decoder_attention_mask"] = given.get("attention_mask")
    if "use_cache" in names:
        given["use_cache"] = False
    if "logits_to_keep" in names and not logits:
        given["logits_to_keep"] = 1
    try:
        return model(tokens, **given)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise UnfinishedError(
                f"out of memory in a batch of {tuple(tokens.shape)} tokens; lower batch_tokens, or the "
                "length of the windows."
            ) from error
        raise


def logits_of(output: Any) -> Tensor:
    """The logits (batch, length, vocabulary) of what a model returned.

    Raises:
        InputError: there are none.
    """
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise InputError(
            f"this model returns a {type(output).__name__} without logits; give a language model."
        )
    return found

"""Running a model over batches of text, whatever its family calls its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from joma.core.errors import InputError, JomaError, UnfinishedError, first_line
from joma.core.memory import is_out_of_memory
from joma.instruments.reading.ready import ReadyBatch
from joma.instruments.reading.texts import TOKEN_INPUTS, TokenBatch


class _WithLogits(Protocol):
    logits: Tensor | None


Output = Tensor | _WithLogits
"""What a model returns, as far as it is read here."""


def run_batch(model: nn.Module, batch: TokenBatch, *, logits: bool = False) -> Output:
    """One forward pass, with the padding mask, without a cache; returns what the model returns.

    An encoder-decoder reads the text in both its parts. Without ``logits``, models that can leave the logits
    of all but the last position out do so. Ready inputs are handed over as they are.

    Raises:
        InputError: padding for a model that takes no mask, tokens for one that takes none, inputs that it
            does not take; and any error of the model itself, in its words.
        UnfinishedError: out of memory.
    """
    device = device_of(model)
    inner = unwrap(model)
    parameters = inspect.signature(inner.forward).parameters
    given: dict[str, Any]
    if isinstance(batch, ReadyBatch):
        given = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.inputs.items()}
        unknown = [name for name in given if name not in parameters]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise InputError(
                f"{type(inner).__name__} takes no {unknown[0]}; its inputs are {', '.join(parameters)}."
            )
    else:
        given = _of_tokens(inner, parameters, batch, device)
    if "use_cache" in parameters:
        given.setdefault("use_cache", False)
    if "logits_to_keep" in parameters and not logits:
        given.setdefault("logits_to_keep", 1)
    arguments = (given.pop(""),) if "" in given else ()
    try:
        output: Output = model(*arguments, **given)
    except JomaError:
        raise
    except Exception as error:  # of the user's model
        if is_out_of_memory(error):
            raise UnfinishedError(
                f"out of memory in a batch of {tuple(batch.tokens.shape)} tokens; lower batch_tokens, or the "
                "length of the windows."
            ) from error
        ready = isinstance(batch, ReadyBatch)
        advice = (
            "mend the inputs in batches"
            if ready
            else "give its inputs ready: joma.probe(model, batches=[{...}])"
        )
        raise InputError(
            f"{type(inner).__name__} cannot read {'this batch' if ready else 'a batch of tokens only'} "
            f"({type(error).__name__}: {first_line(error)}); its inputs are {', '.join(parameters)}. If they "
            f"are not the fault, mend the model; otherwise {advice}."
        ) from error
    return output


def _of_tokens(
    model: nn.Module, parameters: Mapping[str, inspect.Parameter], batch: TokenBatch, device: torch.device
) -> dict[str, Any]:
    """The arguments by name, and the first, whatever its name, under ""."""
    kind = getattr(model, "main_input_name", "input_ids")
    if kind not in TOKEN_INPUTS:
        raise InputError(
            f"{type(model).__name__} takes {_NO_TOKENS.get(kind, kind)}, not the tokens of a text; give its "
            f"inputs ready: joma.probe(model, batches=[{{{kind!r}: ...}}]), or watch it: joma.watch(model)."
        )
    tokens, mask = batch.tokens.to(device), batch.mask.to(device)
    given: dict[str, Any] = {"": tokens}
    if "attention_mask" in parameters:
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
    return given


_NO_TOKENS = {
    "pixel_values": "images",
    "input_features": "sound (features)",
    "input_values": "sound (a waveform)",
    "pixel_values_videos": "videos",
}
"""The main input of models of transformers that read no text, and what it is."""


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself, out of what compiles it, spreads it over devices or adapts it."""
    while True:
        adapted = getattr(model, "get_base_model", None)
        inner = getattr(model, "_orig_mod", None)
        if inner is None and callable(adapted):
            inner = adapted()
        if inner is None and not hasattr(model, "config"):
            children = dict(model.named_children())
            inner = children.get("module") if len(children) == 1 else None
        if not isinstance(inner, nn.Module) or inner is model:
            return model
        model = inner


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its inputs; offloaded weights have no place of their own."""
    hook = getattr(model, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    if isinstance(device, int | str | torch.device):
        return torch.device(device)
    places = (p.device for p in model.parameters() if p.device.type != "meta")
    return next(places, torch.device("cpu"))


def logits_of(output: Output) -> Tensor:
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

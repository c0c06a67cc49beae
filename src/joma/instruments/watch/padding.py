"""Which tokens a padding mask keeps, and which rows of a call are theirs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from joma.instruments.watch.call import AttentionCall

Argument = Tensor | bool | int | float | str | None
KEPT_ROWS = ("attention_mask", "decoder_attention_mask")
PADDED_ROWS = ("src_key_padding_mask", "tgt_key_padding_mask", "key_padding_mask")
_TOKENS = {
    "attention_mask": ("input_ids", "inputs_embeds", "hidden_states"),
    "decoder_attention_mask": ("decoder_input_ids", "decoder_inputs_embeds"),
    "tgt_key_padding_mask": ("tgt",),
    "key_padding_mask": ("key",),
}
"""Whose tokens a mask speaks of, by the argument's name; otherwise the first tensor's."""
_LOWEST = -1_000.0
"""Of a mask that is added to scores: tokens have more."""


def blocks_of_rows(rows: Tensor, call: AttentionCall) -> Tensor | None:
    """The padding mask (samples, tokens) of a call whose samples are blocks of tokens, one after the other.

    Its keys begin with the block's own tokens, or those of the blocks before, of its own and after. None
    where a token that is no padding does not see itself then, or sees padding: they are something else.
    """
    batch, _, size, keys = call.shape
    count = -(-rows.shape[1] // size)
    if count < 2 or batch != len(rows) * count:
        return None
    whole = nn.functional.pad(rows, (0, count * size - rows.shape[1])).reshape(len(rows), count, size)
    around = nn.functional.pad(whole, (0, 0, 1, 1)).unfold(1, 3, 1).transpose(2, 3).flatten(2)
    asks = whole.flatten(0, 1)
    seen = call.keys_seen(asks)
    for own, tokens in ((size, around), (0, whole)):
        padding = ~tokens.flatten(0, 1)
        known = padding.shape[1]
        if (
            known <= keys
            and not bool((seen[:, :known] & padding).any())
            and bool(seen[:, own : own + size][asks].all())
        ):
            return asks
    return None


def tensors_of_tokens(given: object, depth: int = 4) -> Iterator[Tensor]:
    """What may say which tokens are padding: tensors (samples, tokens) or (samples,), at any depth."""
    if isinstance(given, Tensor):
        if given.ndim in (1, 2) and not given.is_nested and not given.is_complex():
            yield given.detach()
    elif depth and isinstance(given, Mapping):
        for one in given.values():
            yield from tensors_of_tokens(one, depth - 1)
    elif depth and isinstance(given, list | tuple):
        for one in given:
            yield from tensors_of_tokens(one, depth - 1)
    elif depth and hasattr(given, "__dict__") and not isinstance(given, type | nn.Module):
        yield from tensors_of_tokens(vars(given), depth - 1)


def told_apart(call: AttentionCall, hints: Iterable[Tensor]) -> Tensor | None:
    """The padding (samples, tokens) among tokens that see themselves alone and that no other sees.

    Such a token may be a document of its own. It is padding where something that the model was given, a
    mask or lengths of any name, tells exactly these tokens from the others.
    """
    batch, _, _, size = call.shape
    fitting = [one for one in hints if tuple(one.shape) in ((batch, size), (batch,))]
    alone = call.tokens_alone() if fitting else None
    if alone is None or not bool(alone.any()) or bool(alone.all()):
        return None
    place = torch.arange(size, device=alone.device)
    for one in fitting:
        told = one.to(alone.device)
        if told.ndim == 1:
            length = told[:, None]
            masks = [place >= length, place < size - length]
        else:
            masks = [told == value for value in (told[alone][0], told.new_zeros(()))]
        if any(torch.equal(mask, alone) for mask in masks):
            return alone
    return None


def tokens_kept(mask: Tensor, of_ones: bool) -> Tensor:
    """A padding mask as bool, True for tokens that are not padding.

    ``of_ones``: 1 for tokens, 0 for padding. Either kind may be added to scores instead: 0 for tokens and
    a large negative number for padding (Longformer: a large positive one for global tokens).
    """
    if mask.dtype == torch.bool:
        return mask if of_ones else ~mask
    if mask.is_floating_point() and not (float(mask.amin()) >= 0 and 0 < float(mask.amax()) <= 1):
        return mask > _LOWEST
    return mask > 0 if of_ones else mask == 0


def tokens_of(name: str, given: Mapping[str, Argument]) -> Tensor | None:
    """The tokens that the mask of this name speaks of, among what the module was given; None: none."""
    named = (given.get(one) for one in _TOKENS.get(name, ()))
    others = (one for key, one in given.items() if key not in (*KEPT_ROWS, *PADDED_ROWS))
    if name == "decoder_attention_mask" and not any(isinstance(given.get(n), Tensor) for n in _TOKENS[name]):
        return None
    for tokens in (*named, *others):
        if isinstance(tokens, Tensor) and not tokens.is_nested and tokens.ndim > 1:
            return tokens
    return None


def length_of(tokens: Tensor, rows: Tensor) -> int:
    """How many tokens there are: (batch, tokens, ...), or (tokens, batch, ...)."""
    first = tokens.shape[0] != len(rows) == tokens.shape[1]
    return tokens.shape[0] if first else tokens.shape[1]


_signatures: dict[type, tuple[str, ...]] = {}


def parameters_of(kind: type[nn.Module]) -> tuple[str, ...]:
    """The names of a kind of module's inputs, in their order."""
    if kind not in _signatures:
        try:
            _signatures[kind] = tuple(inspect.signature(kind.forward).parameters)[1:]
        except (TypeError, ValueError, AttributeError):
            _signatures[kind] = ()
    return _signatures[kind]


def mask_places(module: nn.Module) -> list[str]:
    """The inputs of a module that are padding masks by their names."""
    parameters = parameters_of(type(module))
    return [name for name in (*KEPT_ROWS, *PADDED_ROWS) if name in parameters]


def shapes_of(values: Iterable[Argument]) -> set[tuple[int, ...]]:
    """Of the tensors among the arguments of a module, those of vectors aside."""
    found = (one for one in values if isinstance(one, Tensor) and not one.is_nested)
    return {tuple(one.shape) for one in found if one.ndim > 1}

"""A decoder's attention from outside: its queries, keys and values, and its losses under other masks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from joma.core.errors import InputError
from joma.measures.attention.received.attention import ReceivedAttention, received_attention
from joma.models.decoder import Decoder, DecoderLayer

_LOGITS_AT_ONCE = 1 << 23
"""Of the loss, and of attention masks, at once."""


@dataclass(frozen=True)
class LayerAttention:
    """What one layer attends with; (batch, heads, length, head width) each."""

    query: Tensor
    key: Tensor
    value: Tensor
    output_weight: Tensor
    """(width, width), of the layer behind the heads."""

    def receive(self, rows: list[int] | None = None) -> ReceivedAttention:
        """What every key receives, the changes behind the output layer; of some query rows alone."""
        return received_attention(
            self.query, self.key, self.value, causal=True, output_weight=self.output_weight, rows=rows
        )

    def probabilities(self) -> Tensor:
        """(batch, heads, length, length), causal."""
        scores = self.query @ self.key.mT * self.query.shape[-1] ** -0.5
        hidden = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        found: Tensor = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return found


@torch.no_grad()
def layer_attentions(model: Decoder, tokens: Tensor) -> list[LayerAttention]:
    """Queries, keys and values of each layer on tokens (batch, length), without dropout."""
    found: list[LayerAttention] = []
    with evaluation(model):
        x, mask = model.embed(tokens), model.mask[: tokens.shape[1], : tokens.shape[1]]
        for layer in _layers(model):
            output_weight = layer.out_projection.weight.detach()
            found.append(LayerAttention(*layer.queries_keys_values(x), output_weight))
            x = layer(x, mask)
    return found


@torch.no_grad()
def losses_with_masks(model: Decoder, tokens: Tensor, seen: list[Tensor], start: int) -> Tensor:
    """The mean loss of tokens ``start`` + 1, ... under each of several masks; (masks,) float64, nats.

    Args:
        model: a decoder.
        tokens: (length + 1,), of which the last is only predicted.
        seen: per layer (masks, 1 or heads, length, length) bool, True where a query sees a key.
        start: the first position whose next-token loss counts.

    Raises:
        InputError: no position is left.
    """
    length = len(tokens) - 1
    if not 0 <= start < length:
        raise InputError(f"losses from position {start} of {length}: give one before the text's end.")
    size = max(1, _LOGITS_AT_ONCE // (length * max(model.output.out_features, length)))
    found = []
    with evaluation(model):
        first = model.embed(tokens[None, :-1])
        for part in zip(*(torch.split(one, size) for one in seen), strict=True):
            x = first.expand(len(part[0]), -1, -1)
            for layer, keep in zip(_layers(model), part, strict=True):
                x = layer(x, torch.zeros(keep.shape).masked_fill_(~keep, -math.inf))
            logits = model.output(model.final_norm(x[:, start:]))
            targets = tokens[start + 1 :].expand(len(x), -1)
            each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            found.append(each.view(targets.shape).double().mean(1))
    return torch.cat(found)


def _layers(model: Decoder) -> list[DecoderLayer]:
    return list(model.layers)  # type: ignore[arg-type]


@contextmanager
def evaluation(model: Decoder) -> Iterator[None]:
    """Without dropout as long as this lasts."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)

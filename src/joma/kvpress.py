"""Presses for KVPress that score keys by what they receive exactly, without eager attention.

KVPress (https://github.com/NVIDIA/kvpress) evicts the keys of lowest score after a prompt was read. These
presses recompute nothing of the model but the queries, and never hold the matrix of attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.measures.attention.received.attention import ReceivedAttention, received_attention

try:
    from kvpress import ScorerPress
    from kvpress.utils import get_prerope_query_states
except ImportError as problem:
    raise InputError(
        f"joma.kvpress needs KVPress ({problem}): pip install 'joma[kvpress]' in an environment of its own, "
        "since KVPress pins older transformers and pandas."
    ) from problem


@dataclass
class ReceivedMassPress(ScorerPress):  # type: ignore[misc]  # kvpress is not typed
    """Keeps the keys that received most attention: the heavy hitters of H2O, under any implementation.

    The score of a key is the sum over the queries of its probability, mean over the heads that share it; with
    ``by_query`` the mean over the queries that see it, which is the score of KVPress's
    ``ObservedAttentionPress``, without eager attention.

    Args:
        compression_ratio: share of the keys to evict, in [0, 1).
        by_query: divide by the number of queries that see a key; a sum favours early keys.
    """

    compression_ratio: float = 0.0
    by_query: bool = False

    def score(
        self,
        module: nn.Module,
        hidden_states: Tensor,
        keys: Tensor,
        values: Tensor,
        attentions: Tensor | None,
        kwargs: Mapping[str, Any],
    ) -> Tensor:
        """(batch, key heads, keys) float32; higher is kept."""
        found = measure_received(module, hidden_states, keys, None, kwargs)
        scores = found.mean.nan_to_num(0.0) if self.by_query else found.mass
        return torch.unflatten(scores, 1, (keys.shape[1], -1)).mean(2)


@dataclass
class RemovalEffectPress(ScorerPress):  # type: ignore[misc]  # kvpress is not typed
    """Keeps the keys without which the attention's output would change most.

    The score of a key is the root mean square over queries, and over the heads that share it, of the exact
    change of the output when the key alone is left out, behind the layer's output projection if it has one.

    Args:
        compression_ratio: share of the keys to evict, in [0, 1).
    """

    compression_ratio: float = 0.0

    def score(
        self,
        module: nn.Module,
        hidden_states: Tensor,
        keys: Tensor,
        values: Tensor,
        attentions: Tensor | None,
        kwargs: Mapping[str, Any],
    ) -> Tensor:
        """(batch, key heads, keys) float32; higher is kept."""
        found = measure_received(module, hidden_states, keys, values, kwargs)
        by_group = torch.unflatten(found.removal_effect, 1, (keys.shape[1], -1))
        return by_group.square().mean(2).sqrt()


def measure_received(
    module: nn.Module,
    hidden_states: Tensor,
    keys: Tensor,
    values: Tensor | None,
    kwargs: Mapping[str, Any],
) -> ReceivedAttention:
    """What the keys of a layer's cache received from the queries of a pass; arguments as of ``score``.

    Raises:
        InputError: an attention module whose queries KVPress cannot form.
    """
    try:
        query = get_prerope_query_states(module, hidden_states)
    except NotImplementedError as problem:
        raise InputError(
            f"joma.kvpress: {type(module).__name__} has no queries that KVPress knows; take a model that "
            "KVPress supports."
        ) from problem
    mask, counted = _masks(kwargs.get("attention_mask"), query.shape[2], keys.shape[2])
    output = getattr(getattr(module, "o_proj", None), "weight", None)
    return received_attention(
        _rotate(query, kwargs.get("position_embeddings")),
        keys,
        values,
        scale=getattr(module, "scaling", None),
        causal=getattr(module, "is_causal", True),
        softcap=getattr(module, "attn_logit_softcapping", None),
        window=getattr(module, "sliding_window", None),
        sinks=getattr(module, "sinks", None),
        output_weight=None if values is None else output,
        mask=mask,
        counted=counted,
    )


def _rotate(query: Tensor, position: tuple[Tensor, Tensor] | None) -> Tensor:
    """Queries at their positions: halves of the first directions turned, as Llama does; the rest stays."""
    if position is None:
        return query
    cos, sin = (part[:, None].to(query.dtype) for part in position)
    turned, rest = query[..., : cos.shape[-1]], query[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)


def _masks(mask: Tensor | None, queries: int, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """Mask and counted queries, from (batch, keys) as flash attention takes it, or four dimensions."""
    if mask is None:
        return None, None
    if mask.dim() == 2:
        seen = mask[:, -keys:].bool()
        return seen[:, None, None], seen[:, -queries:]
    return mask[..., :keys], None

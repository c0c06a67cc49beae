"""``flex_attention`` called by hand: its scores, from queries, keys and the functions that change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from joma.instruments.watch.call import AttentionCall


def flex_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> AttentionCall:
    """The call, with its scores (batch, heads, queries, keys): the arguments are those of the operation.

    The mask's own function decides, which is the last of ``block_mask``, not its blocks.
    """
    query, key = query.detach(), key.detach()
    kind = torch.promote_types(query.dtype, torch.float32)
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    shared = key.repeat_interleave(heads // key.shape[1], 1)
    scores = (query.to(kind) @ shared.to(kind).transpose(-1, -2)) * scale
    # The functions speak of one score and its four numbers; with axes of their own they speak of all.
    index = torch.meshgrid(
        *(torch.arange(size, device=query.device) for size in (batch, heads, queries, keys)), indexing="ij"
    )
    scores = score_mod(scores, *index, *score_mod_other_buffers)
    seen = block_mask[-1](*index, *mask_mod_other_buffers)
    return AttentionCall(
        route="kernel",
        operation="flex_attention",
        dtype=query.dtype,
        logits=scores.masked_fill(~seen, -torch.inf),
    )

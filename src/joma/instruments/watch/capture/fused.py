"""The fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer, opened.

In evaluation PyTorch runs a whole layer as one operation. Switching that off
(``torch.backends.mha.set_fastpath_enabled``) would show its attention, and change the model's
outputs in their last bits. Its arguments hold all that is needed: hidden states and the weights that
project them. Queries and keys are computed from them once more, beside the model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.core.errors import InputError
from joma.instruments.watch.call import AttentionCall, scaled_dot_product_call

_MASK_OF_SOURCE, _MASK_OF_PADDING, _MASK_OF_BOTH = 0, 1, 2
"""The mask types of ``nn.MultiheadAttention.merge_masks``."""


def fused_call(operation: str, given: dict[str, Any]) -> AttentionCall:
    """The attention inside a fused operation, from the operation's arguments by name.

    ``aten::_transformer_encoder_layer_fwd`` normalises first if ``norm_first``; nested tensors (how
    ``nn.TransformerEncoder`` leaves padding out) are padded again, and the padding is reported.

    Raises:
        InputError: for a mask of a kind that PyTorch does not document.
    """
    hidden: Tensor = given["src"] if "src" in given else given["query"]
    padding = None
    if hidden.is_nested:
        lengths = torch.tensor([sample.shape[0] for sample in hidden.unbind()], device=hidden.device)
        hidden = torch.nested.to_padded_tensor(hidden, 0.0)
        padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
    if given.get("norm_first"):
        size = hidden.shape[-1:]
        hidden = F.layer_norm(hidden, size, given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    width: int = given["embed_dim"]
    heads: int = given["num_heads"] if "num_heads" in given else given["num_head"]
    weight, bias = given["qkv_weight"], given["qkv_bias"]
    query, key = (
        F.linear(hidden, weight[part], bias[part]).reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)
        for part in (slice(width), slice(width, 2 * width))
    )
    keep = None if padding is None else ~padding[:, None, None, :]
    mask: Tensor | None = given.get("mask")
    if mask is not None:
        hide = mask.bool()
        if given["mask_type"] == _MASK_OF_SOURCE:
            keep = ~hide
        elif given["mask_type"] == _MASK_OF_PADDING:
            padding = hide
            keep = ~hide[:, None, None, :]
        elif given["mask_type"] == _MASK_OF_BOTH:
            keep = ~hide
            # A token that no query sees, not even itself, is padding.
            padding = hide.expand(hidden.shape[0], heads, -1, -1).all(1).all(1)
        else:
            raise InputError(f"mask_type {given['mask_type']} of {operation} is not known; update joma.")
    return scaled_dot_product_call("fused", operation, query, key, mask=keep, padding=padding)

"""The logits of a captured attention call, some queries at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.instruments.watch.call import AttentionCall
from joma.measures.attention.visible_keys import take
from joma.measures.row_correlations import Scores


def score_rows(call: AttentionCall, rows: slice) -> Scores:
    """The logits of some queries as their softmax sees them.

    In float32, or float64 where the model is. A learned sink (a column without a key) is left out.
    """
    # No query of a causal call sees a key behind it.
    some = slice(rows.stop) if call.causal else slice(None)
    everything = slice(None)
    if call.logits is not None:
        logits = call.logits[:, :, rows, some]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    else:
        assert call.query is not None
        assert call.key is not None
        kind = torch.promote_types(call.query.dtype, torch.float32)
        query, key = call.query[:, :, rows].to(kind) * call.scale, call.key[:, :, some].to(kind)
        batch, heads, number, width = query.shape
        # The query heads that share a key head are rows of one product.
        grouped = query.reshape(batch, key.shape[1], -1, width)
        logits = torch.matmul(grouped, key.transpose(-1, -2)).view(batch, heads, number, -1)
    if call.softcap is not None:
        logits = torch.tanh(logits / call.softcap) * call.softcap
    if call.bias is not None:
        logits = logits + take(_four(call.bias), everything, everything, rows)[..., some]
    place = torch.arange(logits.shape[-1], device=logits.device)
    seen = (
        (place <= place[rows, None])[None, None]
        if call.causal
        else torch.ones_like(logits[:1, :1], dtype=torch.bool)
    )
    if call.keep is not None:
        seen = seen & take(_four(call.keep), everything, everything, rows)[..., some]
    if call.bias is not None or call.logits is not None:
        return Scores.of(logits.masked_fill(~seen, -torch.inf))
    # What padding hides need not be finite.
    return Scores(logits.mul_(seen) if call.keep is None else logits.masked_fill_(~seen, 0.0), seen)


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.ndim)]

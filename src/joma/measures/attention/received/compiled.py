"""Sums over the queries of each key on the CPU, by joma's own compiled kernel.

Where the entropy's kernel serves: scores linear in the keys, of which each row sees an interval. The first
pass over the keys is the entropy's and finds each row's normaliser; the second adds what the keys receive.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from joma.measures.attention.compiled import compiled_rows, compiled_sums, explain_absence
from joma.measures.attention.received.blocks import BlockSums
from joma.measures.attention.received.sums import Sums, doubts, underflow_bound
from joma.measures.attention.scores import BITS, Scores
from joma.measures.attention.visible_keys import visible_keys

_LOG = logging.getLogger("joma")


def compiled_key_sums(
    scores: Scores, sinks: Tensor | None, weight: Tensor, value: Tensor | None
) -> Sums | None:
    """The sums of ``BlockSums``, or None where the kernel does not serve or is not there.

    Args:
        scores: centred, in float32.
        sinks: (heads,)
        weight: (batch or 1, rows), how often each row counts.
        value: (batch, heads or key heads, keys, width) float32.
    """
    rows = compiled_sums(scores)
    kernel = None if rows is None else _kernel()
    if rows is None or kernel is None or not all(bool(x.isfinite().all()) for x in rows.values()):
        return None
    return _key_sums(kernel, scores, rows, sinks, weight, value)


def _key_sums(
    kernel: ModuleType,
    scores: Scores,
    rows: dict[str, Tensor],
    sinks: Tensor | None,
    weight: Tensor,
    value: Tensor | None,
) -> Sums:
    top, total, square = rows["top"], rows["total"], rows["square"]
    beside = torch.zeros_like(top)
    if sinks is not None:
        # The sink's logit on the scale of the centred scores.
        sink = (sinks[:, None] - scores.offset()).to(top) * BITS
        highest = torch.maximum(top, sink)
        kept, beside = (top - highest).exp2(), (sink - highest).exp2()
        top, total, square = highest, total * kept + beside, square * kept
    share = torch.where(total > 0, 1 / total, 0.0)
    counted = weight[:, None].to(top) * (scores.visible.counts > 0)
    slope, floor = doubts(scores, (square * share).sqrt(), top / BITS, scores.key.shape[2])
    several = scores.visible.counts > 1
    each = (top, share, counted, counted * slope, counted * floor, beside * share, several.to(top))
    per_row = torch.stack([x.expand(top.shape) for x in each])
    seen = scores.visible
    found = kernel.key_sums(
        scores.query.numpy(),
        scores.key.numpy(),
        None if value is None else value.numpy(),
        seen.first.numpy(),
        seen.stop.numpy(),
        per_row.numpy(),
        scores.scale * BITS,
    )
    sums = Sums(*torch.from_numpy(found).unbind(0))
    sums.mass_error += underflow_bound(top.dtype) * weight.sum(-1)[:, None, None]
    return sums


@lru_cache
def _kernel() -> ModuleType | None:
    """The compiled kernel, if there is a compiler and what it makes is right on a small block."""
    try:
        from joma.measures.attention.received import compiled_kernel

        return compiled_kernel if _agrees(compiled_kernel) else None
    except Exception as error:
        _LOG.warning(explain_absence(error, "the received attention of long texts is"))
        return None


def _agrees(kernel: ModuleType) -> bool:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 40, 16, generator=generator) * 3
    key, value = (torch.randn(1, 2, 600, 16, generator=generator) for _ in range(2))
    positions = torch.arange(560, 600)
    seen = visible_keys(positions, 600, causal=True, window=(559, 0), mask=None)
    scores = Scores(query, key, 0.5, seen, positions)
    weight = torch.ones(1, 40, dtype=torch.float64)
    right = BlockSums(scores.centre_keys(torch.float64), None, weight, value.double(), 1 << 20).sums()
    centred = scores.centre_keys(torch.float32)
    rows = compiled_rows(centred)
    found = None if rows is None else _key_sums(kernel, centred, rows, None, weight, value)
    return found is not None and all(
        torch.allclose(getattr(found, name), getattr(right, name), rtol=1e-5, atol=1e-30)
        for name in ("mass", "maximum", "square", "removal")
    )

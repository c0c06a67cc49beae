"""Sums over the queries of each key on the CPU, by joma's own compiled kernel.

Where the entropy's kernel serves: scores linear in the keys, of which each row sees an interval.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from joma.measures.attention.compiled import explain_absence, kernel_serves
from joma.measures.attention.received.blocks import BlockSums
from joma.measures.attention.received.sums import Rounding, Sums, underflow_bound
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
    kernel = _kernel() if kernel_serves(scores) else None
    found = None if kernel is None else _key_sums(kernel, scores, sinks, weight, value)
    # Scores that overflow make sums that are no numbers.
    return found if found is not None and bool(found.mass.isfinite().all()) else None


def _key_sums(
    kernel: ModuleType, scores: Scores, sinks: Tensor | None, weight: Tensor, value: Tensor | None
) -> Sums:
    seen, keys = scores.visible, scores.key.shape[2]
    counted = weight[:, None] * (seen.counts > 0)
    rounding = Rounding.of(scores, keys)
    sink: Tensor = torch.full_like(rounding.slope, -torch.inf)
    if sinks is not None:
        # The sink's logit on the scale of the centred scores.
        sink = ((sinks[:, None] - scores.offset()) * BITS).expand(sink.shape)
    shape = sink.shape
    per_row = torch.stack([x.to(scores.query).expand(shape) for x in (sink, counted, rounding.slope)])
    found = kernel.key_sums(
        scores.query.numpy(),
        scores.key.numpy(),
        None if value is None else value.numpy(),
        seen.first.numpy(),
        seen.stop.numpy(),
        per_row.numpy(),
        scores.scale * BITS,
        (rounding.unit, rounding.extra),
    )
    sums = Sums(*torch.from_numpy(found).unbind(0))
    sums.mass_error += underflow_bound(scores.query.dtype) * weight.sum(-1)[:, None, None]
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
    found = _key_sums(kernel, centred, None, weight, value)
    return all(
        torch.allclose(getattr(found, name), getattr(right, name), rtol=1e-5, atol=1e-30)
        for name in ("mass", "maximum", "square", "removal")
    )

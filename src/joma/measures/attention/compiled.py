"""Attention entropy of long texts on the CPU, by joma's own compiled kernel.

For scores linear in the keys, where each row sees an interval of them: causal attention, windows, padding,
packed documents. The scores of a few rows at a time never leave the nearest cache.
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from joma.core.errors import first_line
from joma.measures.attention.scores import BITS, Moments, Scores, WantedMoments, moments_of_sums

_LOG = logging.getLogger("joma")
FEWEST = 1 << 19
"""Scores that are worth the import of a compiler; less takes flash attention a few milliseconds."""


def compiled_moments(scores: Scores, wanted: WantedMoments) -> Moments | None:
    """The moments of every row, or None where the kernel does not serve (see the module) or is not there."""
    kernel = None if wanted.powers or wanted.key_spread or not kernel_serves(scores) else _kernel()
    if kernel is None:
        return None
    query, key, seen = scores.query, scores.key, scores.visible
    factor = scores.scale * BITS
    sums = _sums(kernel, query, key, seen.first, seen.stop, scores.positions, factor, placed=wanted.mean_key)
    named: dict[str | float, Tensor] = {name: sums[name] for name in sums}
    return moments_of_sums(scores, wanted, named, scores.length() * BITS)


def kernel_serves(scores: Scores) -> bool:
    """Whether there is enough to compute, in float32 on the CPU, of scores as the module describes."""
    query = scores.query
    return (
        math.prod(query.shape[:3]) * scores.key.shape[2] >= FEWEST
        and query.device.type == "cpu"
        and query.dtype == torch.float32
        and scores.linear
        and scores.visible.mask is None
    )


def _sums(
    kernel: ModuleType,
    query: Tensor,
    key: Tensor,
    first: Tensor,
    stop: Tensor,
    positions: Tensor,
    factor: float,
    *,
    placed: bool,
) -> dict[str, Tensor]:
    arrays = (x.numpy() for x in (query, key, first, stop, positions))
    sums = torch.from_numpy(kernel.row_sums(*arrays, factor, placed=placed))
    names = ("top", "total", "mean", "square", *(("place",) if placed else ()))
    return dict(zip(names, sums, strict=False))


@lru_cache
def _kernel() -> ModuleType | None:
    """The compiled kernel, if there is a compiler and what it makes is right on a small block."""
    try:
        from joma.measures.attention import compiled_kernel

        return compiled_kernel if _agrees(compiled_kernel) else None
    except Exception as error:
        _LOG.warning(explain_absence(error, "the attention entropies of long texts are"))
        return None


def explain_absence(error: Exception, slower: str) -> str:
    """Why there is no compiled kernel, what is computed more slowly for it, and what to do."""
    reason, advice = f"numba compiled nothing ({first_line(error)})", ""
    if isinstance(error, ImportError):
        reason, advice = "numba is not installed", "; pip install numba"
    elif "cannot cache" in str(error):
        reason = "no folder can be written to keep what numba compiles"
        advice = "; name one in the environment variable NUMBA_CACHE_DIR"
    return f"{reason}: {slower} computed by PyTorch, more slowly{advice}."


def _agrees(kernel: ModuleType) -> bool:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 40, 16, generator=generator)
    key = torch.randn(1, 2, 600, 16, generator=generator)
    first, stop = torch.arange(40)[None], torch.arange(560, 600)[None]
    found = _sums(kernel, query, key, first, stop, first[0], 0.5, placed=True)
    away = torch.arange(600) - first[0, :, None]
    keep = (away >= 0) & (away < 560)
    scores = (torch.unflatten(query, 1, (2, 2)).double() @ key.double()[:, :, None].mT).flatten(1, 2) * 0.5
    top = scores.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    weight = (scores - top).exp2() * keep
    square = key.double().square().sum(-1).repeat_interleave(2, 1)[:, :, None]
    right = top.squeeze(-1), *((weight * times).sum(-1) for times in (1.0, scores - top, square, away))
    return all(
        torch.allclose(found[name].double(), expected, rtol=1e-5, atol=1e-5)
        for name, expected in zip(found, right, strict=True)
    )

"""Attention entropy without the attention matrix.

For scores linear in the keys, s_j = scale q . k_j, and p = softmax(s),

    H = log sum_j exp s_j - sum_j p_j s_j = lse - scale q . (P K):

a flash-attention call with the keys as its values returns both, in memory linear in the length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joma.measures.attention.kernels import Kernel, kernel_for
from joma.measures.attention.scores import OUTLYING, Moments, Scores, WantedMoments, empty_moments
from joma.measures.attention.visible_keys import Piece, pieces

_KERNEL_BLOCK = 512
"""Keys that the CPU kernel sums in one product."""
_FEW_DIRECTIONS = 16


def flash_moments(scores: Scores, wanted: WantedMoments) -> Moments | None:
    """The moments of every row, or None where the device has no kernel for it.

    ``scores`` must be linear and ``wanted`` hold only what is linear in the probabilities.
    """
    kernel = kernel_for(scores.query.device, scores.query.dtype)
    if kernel is None or not scores.linear or wanted.nonlinear:
        return None
    batch, heads, rows, _ = scores.query.shape
    out = empty_moments(scores, wanted)
    seen = scores.visible
    together = len(seen.first) == 1 and (seen.mask is None or len(seen.mask) == 1)
    for begin in range(1 if together else batch):
        sample = slice(0, batch) if together else slice(begin, begin + 1)
        part = scores.take(sample, slice(0, heads), slice(0, rows))
        for piece in pieces(
            part.visible.first[0], part.visible.stop[0], masked=part.visible.mask is not None
        ):
            _piece(kernel, part, out, sample, piece)
    return out


def _piece(kernel: Kernel, scores: Scores, out: Moments, sample: slice, piece: Piece) -> None:
    rows, where = piece.rows, (sample, slice(None), piece.rows)
    query, width = scores.query[:, :, rows], scores.query.shape[-1]
    length = scores.length()[:, :, rows]
    mask = _mask(scores, piece) if piece.kind == "masked" else None
    positions = out.mean_key is not None
    parts = _calls(kernel, scores, query, piece, mask, positions)
    mean, lse = parts[0]
    large = torch.linalg.vector_norm(mean[..., :width], dim=-1)
    size = lse.abs()
    if len(parts) > 1:
        earlier, earlier_lse = parts[1]
        # Of the gap, not exp(lse - both): these weights sum to 1 within a unit, however large the sums are.
        weight, rest = ((sign * (lse - earlier_lse)).sigmoid() for sign in (1, -1))
        large_before = torch.linalg.vector_norm(earlier[..., :width], dim=-1)
        apart = (query * (mean - earlier)[..., :width]).sum(-1).abs() * abs(scores.scale)
        # An error d of the gap moves mass w (1 - w) d from one part to the other.
        gap_size = lse.abs() + earlier_lse.abs() + length * (large + large_before)
        mean = weight[..., None] * mean + rest[..., None] * earlier
        large = weight * large + rest * large_before
        lse = torch.logaddexp(lse, earlier_lse)
        size = lse.abs() + weight * rest * apart * gap_size
    if positions:
        centre = (piece.rows.start + piece.rows.stop - 1) // 2
        ones = mean[..., width + 1]
        offset = scores.positions[centre] - scores.positions[rows]
        assert out.mean_key is not None
        out.mean_key[where] = mean[..., width] / ones + offset
        mean = mean[..., :width]
    expected = (query * mean).sum(-1) * scores.scale
    out.log_normaliser[where] = lse
    out.entropy[where] = lse - expected
    assert scores.typical is not None
    typical = scores.typical.repeat_interleave(scores.group, 1)[..., None]
    # Keys that cancel in their mean (two of them, half and half) have not lost their rounding.
    # The products round once in lse and once more with the mean, whose sum over a block's keys errs by some
    # units at random; with few directions the kernel adds one key after another, and equal terms that round
    # alike err by a share of a unit for each.
    every = piece.keys.stop - piece.keys.start
    keys = min(_KERNEL_BLOCK, every)
    alike = max(8.0, keys / 4 + every / 64) if query.shape[-1] < _FEW_DIRECTIONS else 2.0
    error = scores.rounding * (size + length * (alike * large + typical / 4))
    keys_error = keys * torch.finfo(query.dtype).eps
    error += length * _lost_in_sum(typical, large, out.entropy[where], keys_error)
    out.error[where] = error
    out.score_error[where] = scores.rounding * length * scores.longest()
    out.normaliser_error[where] = scores.rounding * lse.abs() + out.score_error[where]


def _calls(
    kernel: Kernel,
    scores: Scores,
    query: Tensor,
    piece: Piece,
    mask: Tensor | None,
    positions: bool,
) -> list[tuple[Tensor, Tensor]]:
    """P V and lse of a piece's keys, and of those before them; V the keys, beside them positions and ones."""
    key, scale = scores.key, scores.scale
    if scale < 0:  # the kernels take the largest product for that of the largest score
        query, scale = -query, -scale
    value = key
    if positions:
        # The kernel wants as many value columns as key columns: zeros beside the keys, which no score sees.
        centre = scores.positions[(piece.rows.start + piece.rows.stop - 1) // 2]
        place = (torch.arange(key.shape[2], device=key.device) - centre).to(key.dtype)
        columns = torch.stack([place, torch.ones_like(place)], -1).expand(*key.shape[:2], -1, -1)
        value = torch.cat([key, columns], -1)
        query, key = torch.nn.functional.pad(query, (0, 2)), torch.nn.functional.pad(key, (0, 2))
    now = (slice(None), slice(None), piece.keys)
    parts = [kernel(query, key[now], value[now], piece.kind == "causal", mask, scale)]
    if piece.before is not None:
        before = (slice(None), slice(None), piece.before)
        parts.append(kernel(query, key[before], value[before], False, None, scale))
    return parts


def _lost_in_sum(typical: Tensor, large: Tensor, entropy: Tensor, units: float) -> Tensor:
    """What a kernel may lose of P K, as a length, by adding many small terms to a large one.

    Where one key is far longer than the others and takes most of the mass (a sink), P K is a sum of that
    key and of terms below half a unit in its last place, each lost. No more is lost than one unit for
    every key of a kernel's block, nor more than the tail's mass (at most H / ln 4) times its keys.
    """
    by_mass = (entropy.abs() / math.log(4)).clamp_max(1.0) * typical * OUTLYING
    return torch.minimum(units * large, by_mass).masked_fill(large <= OUTLYING * typical, 0.0)


def _mask(scores: Scores, piece: Piece) -> Tensor:
    seen = scores.visible
    if seen.mask is not None:
        keep = seen.mask[:, :, piece.rows, piece.keys]
    else:
        place = torch.arange(piece.keys.start, piece.keys.stop, device=seen.first.device)
        keep = (place >= seen.first[0, piece.rows, None]) & (place < seen.stop[0, piece.rows, None])
    return torch.zeros(keep.shape, dtype=scores.key.dtype, device=keep.device).masked_fill_(~keep, -torch.inf)

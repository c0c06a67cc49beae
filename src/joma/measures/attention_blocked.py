"""Attention statistics by blocks of query rows: for any scores, in bounded memory.

The dense formula on as many rows at once as fit a given number of logits. Takes soft caps, biases and
statistics that no sum over keys gives, and is the reference for the flash form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joma.measures.attention_scores import ROUNDING, Moments, Scores, Wanted, empty_moments


def blocked_moments(scores: Scores, wanted: Wanted, block_size: int) -> Moments:
    """The moments of every row, ``block_size`` logits at a time, but at least one row of all heads."""
    batch, heads, rows, _ = scores.query.shape
    keys = scores.key.shape[2]
    out = empty_moments(scores, wanted)
    square = (scores.key * scores.key).sum(-1)
    samples = max(1, block_size // max(1, heads * rows * keys))
    step = rows if samples > 1 else max(1, block_size // (heads * keys))
    for begin in range(0, batch, samples):
        sample = slice(begin, min(begin + samples, batch))
        for at in range(0, rows, step):
            _block(scores, square, out, sample, slice(at, min(at + step, rows)))
    return out


def _block(scores: Scores, square: Tensor, out: Moments, sample: slice, rows: slice) -> None:
    part = scores.take(sample, slice(0, scores.query.shape[1]), rows)
    seen = part.visible
    keys = slice(int(seen.first.min()), int(seen.stop.max()))
    if keys.stop <= keys.start:
        return
    key, size = part.key[:, :, keys], square[sample][:, :, keys]
    # The group's heads and the rows share one product with their key head.
    query = part.grouped(part.query * part.scale).flatten(2, 3)
    s = torch.unflatten(torch.matmul(query, key.mT), 2, (part.group, -1)).flatten(1, 2)
    if part.softcap is not None:
        s.div_(part.softcap).tanh_().mul_(part.softcap)
    if part.bias is not None:
        s += part.bias[..., keys] if part.bias.shape[-1] > 1 else part.bias
    position = torch.arange(keys.start, keys.stop, device=s.device)
    # Not -inf: a hidden key then has weight 0 and a finite score, and their product is 0.
    hidden = torch.finfo(s.dtype).min / 4
    if seen.mask is not None:
        s.masked_fill_(~seen.mask[..., keys], hidden)
    elif bool((seen.first > keys.start).any()) or bool((seen.stop < keys.stop).any()):
        inside = (position >= seen.first[..., None]) & (position < seen.stop[..., None])
        s.masked_fill_(~inside[:, None], hidden)
    top = s.amax(-1)
    s -= top[..., None]
    weights = s.exp()
    total = weights.sum(-1)
    where = (sample, slice(None), rows)
    log_total = total.log()
    out.log_normaliser[where] = top + log_total
    if out.largest is not None:
        out.largest[where] = top
    for power, room in out.powers.items():
        room[where] = power * top + (s * power).exp_().sum(-1).log()
    square_mean = part.grouped(weights).flatten(2, 3).matmul(size[..., None]).squeeze(-1)
    square_mean = torch.unflatten(square_mean, 2, (part.group, -1)).flatten(1, 2) / total
    mean = s.mul_(weights).sum(-1) / total
    out.entropy[where] = log_total - mean
    length = torch.linalg.vector_norm(part.query, dim=-1) * abs(part.scale)
    size_of_scores = (top + mean).abs() + length * square_mean.sqrt()
    if part.softcap is not None:
        size_of_scores += part.softcap
    if part.bias is not None:
        size_of_scores += top.abs()
    epsilon = torch.finfo(s.dtype).eps
    out.error[where] = ROUNDING * epsilon * (log_total.abs() + mean.abs() + size_of_scores)
    if out.mean_key is not None or out.key_spread is not None:
        distance = position.to(s.dtype) - part.positions[:, None]
        average = torch.mul(weights, distance, out=s).sum(-1) / total
        if out.mean_key is not None:
            out.mean_key[where] = average
        if out.key_spread is not None:
            away = torch.sub(distance, average[..., None], out=s)
            variance = away.square_().mul_(weights).sum(-1) / total
            out.key_spread[where] = variance.sqrt()

"""Attention statistics by blocks of query rows and keys: for any scores, in bounded memory.

The dense formula, tile by tile. Takes soft caps, biases and statistics that no sum over keys gives, and
is the reference for the flash form. It forms Q K^T but not P K, half the products of the flash form, and is
as fast as that on one thread of a CPU; on more, its many small steps fall behind.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from joma.measures.attention.scores import BITS, Moments, Scores, WantedMoments, moments_of_sums
from joma.measures.attention.visible_keys import Rows, take

_LOGITS = 3 << 17
"""Of a tile at most: few enough for a cache."""
_FEW = 1 << 17
"""Of a tile at least, where rows, heads and samples can be put together: enough to hide its calls' cost."""
_KEYS = 512
"""Of a tile at most, where there are more than twice as many."""
_BLOCKS = 8
"""Rows are cut into at least so many blocks: of causal ones, 1/8 of what is computed is hidden."""

_Ceiling = tuple[slice, Tensor]


def blocked_moments(scores: Scores, wanted: WantedMoments, block_size: int) -> Moments:
    """The moments of every row, ``block_size`` logits at a time, or one for each head of a group if fewer."""
    batch, key_heads, keys, _ = scores.key.shape
    group, rows = scores.group, scores.query.shape[2]
    width = max(1, min(keys if keys <= 2 * _KEYS else _KEYS, block_size // group))
    most, few = (max(1, min(block_size, logits) // (group * width)) for logits in (_LOGITS, _FEW))
    step = min(rows, most, max(few, math.ceil(rows / _BLOCKS)))
    step = math.ceil(rows / math.ceil(rows / step))  # blocks of about equal size
    samples = max(1, few // (key_heads * rows)) if step == rows and width == keys else 1
    blocks = _Blocks(scores, wanted, width)
    for begin in range(0, batch, samples):
        sample = slice(begin, min(begin + samples, batch))
        together = max(1, few // ((sample.stop - begin) * step))
        for at in range(0, rows, step):
            some = slice(at, min(at + step, rows))
            seen, ceilings = blocks.visible(sample, some)
            for head in range(0, key_heads if seen.stop > seen.start else 0, together):
                blocks.add(sample, slice(head, min(head + together, key_heads)), some, seen, ceilings)
    return blocks.moments()


class _Blocks:
    """Sums over the keys of each row.

    Rows are laid out (batch, key heads, rows * group): a group's heads, which share a product with their
    key head, stand beside each other row by row, so that a run of rows is a view.
    """

    def __init__(self, scores: Scores, wanted: WantedMoments, width: int) -> None:
        batch, key_heads, keys, _ = scores.key.shape
        rows, group = scores.query.shape[2], scores.group
        self.scores, self.wanted, self.width = scores, wanted, width
        factor = scores.scale * BITS if scores.softcap is None else scores.scale / scores.softcap
        query = scores.query.new_empty(batch, key_heads, rows, group, scores.query.shape[-1])
        torch.mul(scores.group_heads(scores.query).transpose(2, 3), factor, out=query)
        self.query = query.flatten(2, 3)
        self.square = (scores.key * scores.key).sum(-1)
        first, stop = scores.visible.first.cpu().numpy(), scores.visible.stop.cpu().numpy()
        # Rows that see nothing widen no block.
        self.first, self.stop = np.where(first < stop, first, keys), np.where(first < stop, stop, 0)
        self.hidden = torch.finfo(query.dtype).min / 4
        self.ceilings: dict[tuple[int, bytes, bytes], Tensor] = {}
        self.room = query.new_empty(2, 0)
        self.names: tuple[str | float, ...] = ("top", "total", "mean", "square", *wanted.powers)
        if wanted.mean_key or wanted.key_spread:
            self.names += ("place",)
        if wanted.key_spread:
            self.names += ("away",)
        self.sums = query.new_zeros(len(self.names), batch, key_heads, rows * group)

    def visible(self, sample: slice, rows: slice) -> tuple[slice, list[_Ceiling]]:
        """The keys that any row of a block sees, and what bounds the scores from above where not all do.

        A ceiling (samples or 1, 1, rows, 1, keys) is infinite where a row sees a key. Elsewhere it is far
        down, yet finite, since 0 times it must be 0.
        """
        one = sample if len(self.first) > 1 else slice(None)
        first, stop = self.first[one, rows], self.stop[one, rows]
        keys = slice(int(first.min()), int(stop.max()))
        if self.scores.visible.mask is not None:
            return keys, []
        # Keys between the last row's first and the first row's last are seen by every row.
        edges = (keys.start, min(int(first.max()), keys.stop)), (max(int(stop.min()), keys.start), keys.stop)
        ceilings = []
        for begin, end in edges:
            if begin < end:
                low, high = ((bound - begin).clip(0, end - begin) for bound in (first, stop))
                ceilings.append((slice(begin, end), self._ceiling(low, high, end - begin)))
        return keys, ceilings

    def _ceiling(self, low: Rows, high: Rows, keys: int) -> Tensor:
        same = keys, low.tobytes(), high.tobytes()
        if same not in self.ceilings:
            place = np.arange(keys)
            inside = (place >= low[..., None]) & (place < high[..., None])
            ceiling = torch.from_numpy(np.where(inside, np.inf, self.hidden)).to(self.query)
            # One is kept: the blocks of causal rows all have the same.
            self.ceilings = {same: ceiling[:, None, :, None]}
        return self.ceilings[same]

    def add(self, sample: slice, heads: slice, rows: slice, keys: slice, ceilings: list[_Ceiling]) -> None:
        """Sum over the keys of a block of rows."""
        inside = (sample, heads, slice(rows.start * self.scores.group, rows.stop * self.scores.group))
        query = self.query[inside]
        number = math.ceil((keys.stop - keys.start) / self.width)
        sums = self.sums[:, *inside]
        parts = sums[:, None] if number == 1 else sums.new_empty(len(sums), number, *sums.shape[1:])
        end = keys.start
        for tile in range(number):
            begin, end = end, keys.start + (keys.stop - keys.start) * (tile + 1) // number
            some = dict(zip(self.names, parts[:, tile].unbind(), strict=True))
            self._tile(query, some, (sample, heads, rows), slice(begin, end), ceilings)
        if number > 1:
            self._join(parts, sums)
        if "place" in self.names:  # counted from the middle of the rows so far
            own = self.scores.positions[rows] - self._middle(rows)
            place, total = (sums[self.names.index(name)] for name in ("place", "total"))
            place -= own.to(total.dtype).repeat_interleave(self.scores.group) * total

    def _tile(
        self,
        query: Tensor,
        sums: dict[str | float, Tensor],
        block: tuple[slice, slice, slice],
        keys: slice,
        ceilings: list[_Ceiling],
    ) -> None:
        sample, heads, rows = block
        scores = self.scores
        s, w = self._products(query, scores.key[sample, heads, keys])
        by_head = s.view(*s.shape[:2], -1, scores.group, s.shape[3])
        if scores.softcap is not None:
            s.tanh_().mul_(scores.softcap * BITS)
        if scores.bias is not None:
            bias = self._of_block(scores.bias, *block)
            by_head.add_(bias if bias.shape[-1] == 1 else bias[..., keys], alpha=BITS)
        if scores.visible.mask is not None:
            keep = self._of_block(scores.visible.mask, *block)[..., keys]
            ceilings = [(keys, s.new_full(keep.shape, torch.inf).masked_fill_(~keep, self.hidden))]
        for place, ceiling in ceilings:  # five times faster than filling by a mask
            begin, end = max(place.start, keys.start), min(place.stop, keys.stop)
            if begin < end:
                ceiling = ceiling[..., begin - place.start : end - place.start]
                by_head[..., begin - keys.start : end - keys.start].clamp_max_(ceiling)
        torch.amax(s, -1, out=sums["top"])
        s -= sums["top"][..., None]
        for power in self.wanted.powers:
            torch.sum(torch.mul(s, power, out=w).exp2_(), -1, out=sums[power])
        torch.exp2(s, out=w)
        torch.sum(w, -1, out=sums["total"])
        torch.sum(s.mul_(w), -1, out=sums["mean"])
        _weigh(w, self.square[sample, heads, keys], s, sums["square"])
        if "place" in sums:
            # Counted from the rows' middle: small numbers keep float32 exact in long texts too.
            places = torch.arange(keys.start, keys.stop, device=s.device) - self._middle(rows)
            places = places.to(s.dtype).expand(*s.shape[:2], -1)
            _weigh(w, places, s, sums["place"])
            if "away" in sums:
                away = torch.sub(places[:, :, None], (sums["place"] / sums["total"])[..., None], out=s)
                torch.sum(away.square_().mul_(w), -1, out=sums["away"])

    def _products(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """query key^T, (samples, heads, rows * group, keys), and room for as much again."""
        shape = (*query.shape[:3], key.shape[2])
        size = math.prod(shape)
        if size > self.room.shape[1]:
            self.room = query.new_empty(2, size)
        s, w = (room[:size].view(shape) for room in self.room)
        if shape[:2] == (1, 1):
            torch.mm(query[0, 0], key[0, 0].T, out=s[0, 0])
        else:
            torch.bmm(query.flatten(0, 1), key.flatten(0, 1).mT, out=s.flatten(0, 1))
        return s, w

    def _of_block(self, array: Tensor, sample: slice, heads: slice, rows: slice) -> Tensor:
        """(batch or 1, heads or 1, rows or 1, keys or 1), cut: (..., key heads, rows, group, keys), or 1s."""
        group = self.scores.group
        array = take(array, sample, slice(heads.start * group, heads.stop * group), rows)
        return torch.unflatten(array, 1, (-1, group if array.shape[1] > 1 else 1)).transpose(2, 3)

    def _middle(self, rows: slice) -> Tensor:
        return self.scores.positions[(rows.start + rows.stop) // 2]

    def _join(self, parts: Tensor, sums: Tensor) -> None:
        """Sums of tiles, each relative to its own largest score, as sums relative to the largest of all."""
        part, joined = (dict(zip(self.names, x.unbind(), strict=True)) for x in (parts, sums))
        torch.amax(part["top"], 0, out=joined["top"])
        lower = part["top"] - joined["top"]
        factor = lower.exp2()
        torch.sum(part["total"].mul_(factor), 0, out=joined["total"])
        torch.sum(part["mean"].mul_(factor).add_(lower * part["total"]), 0, out=joined["mean"])
        for power in self.wanted.powers:
            torch.sum(part[power].mul_((lower * power).exp2_()), 0, out=joined[power])
        for name in ("square", "place"):
            if name in part:
                torch.sum(part[name].mul_(factor), 0, out=joined[name])
        if "away" in part:
            between = part["place"] / part["total"].clamp_min(torch.finfo(factor.dtype).tiny)
            between -= joined["place"] / joined["total"]
            between.square_().mul_(part["total"])
            torch.sum(part["away"].mul_(factor).add_(between), 0, out=joined["away"])

    def moments(self) -> Moments:
        """What the sums say, in nats."""
        sums = {name: self._by_head(x) for name, x in zip(self.names, self.sums.unbind(), strict=True)}
        return moments_of_sums(self.scores, self.wanted, sums, self.scores.length() * BITS)

    def _by_head(self, rows: Tensor) -> Tensor:
        """(batch, key heads, rows * group) -> (batch, heads, rows)"""
        return torch.unflatten(rows, 2, (-1, self.scores.group)).transpose(2, 3).flatten(1, 2)


def _weigh(weights: Tensor, values: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Sum over the keys of weights (samples, heads, rows, keys) times values (samples, heads, keys)."""
    if weights.shape[0] == weights.shape[1] == 1:
        torch.mv(weights[0, 0], values[0, 0], out=out[0, 0])
    else:  # a batch of matrix-vector products takes far longer
        torch.sum(torch.mul(weights, values[:, :, None], out=scratch), -1, out=out)

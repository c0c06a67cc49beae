"""Sums over the queries of each key, by blocks of query rows that hold all the keys they see.

For row i with probabilities p and output o, leaving out key j changes the output by
o^(-j) - o = p_j / (1 - p_j) (o - v_j). Where p_j > 1/2 that is p_j (o^(-j) - v_j), with o^(-j) a softmax over
the other keys: no difference of nearly equal numbers is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from joma.measures.attention.received.sums import Rounding, Sums, underflow_bound
from joma.measures.attention.scores import Scores

_LOGITS = 3 << 17
"""Of a block at most, unless one row has more: few enough for a cache."""


@dataclass(frozen=True)
class BlockSums:
    """Everything that a block needs."""

    scores: Scores
    sinks: Tensor | None
    """(heads,)"""
    weight: Tensor
    """(batch or 1, rows): how many rows of the text each row stands for; 0 where it does not count."""
    value: Tensor | None
    """(batch, heads or key heads, keys, width), in the scores' dtype."""
    block_size: int

    def sums(self) -> Sums:
        """The sums of all rows."""
        scores = self.scores
        batch, heads, rows, _ = scores.query.shape
        keys, group = scores.key.shape[2], scores.group
        room = [scores.query.new_zeros(batch, heads, keys, dtype=torch.float64) for _ in range(6)]
        sums = Sums(*room)
        most = max(1, min(self.block_size, _LOGITS) // keys)
        step = max(1, min(rows, most // group))
        together = max(1, most // (group * step)) * group
        for sample in range(batch):
            for head in range(0, heads, together):
                for at in range(0, rows, step):
                    block = (
                        slice(sample, sample + 1),
                        slice(head, min(head + together, heads)),
                        slice(at, min(at + step, rows)),
                    )
                    self._add(sums, block)
        return sums

    def _add(self, sums: Sums, block: tuple[slice, slice, slice]) -> None:
        sample, heads, rows = block
        part = self.scores.take(sample, heads, rows)
        first, stop = part.visible.first[0], part.visible.stop[0]
        some = first < stop
        weight = self.weight[sample if len(self.weight) > 1 else slice(None)][:, rows] * some
        if not bool(weight.any()):
            return
        keys = slice(int(first[some].min()), int(stop[some].max()))
        s = part.bias_and_hide(part.capped_products(keys), keys)
        sink = None if self.sinks is None else self.sinks[heads].to(s.dtype)
        if sink is not None:
            sink = torch.unflatten(sink, 0, (-1, part.group))
            offset = part.offset()
            moved = offset if isinstance(offset, Tensor) else s.new_zeros(part.query.shape[:-1])
            # The sink's logit on the scale of the centred scores.
            sink = sink[None, :, :, None] - part.group_heads(moved)
        p, top = _softmax(s, sink)
        where = (sample, heads, keys)
        _add_mass(sums, where, part, p, s, top, weight)
        if self.value is not None:
            values = self._values(sample, heads)[..., keys, :]
            _add_removal(sums, where, part, (p, s, sink, top), values, weight)

    def _values(self, sample: slice, heads: slice) -> Tensor:
        """(samples, key heads, 1 or group, keys, width)"""
        assert self.value is not None
        group = self.scores.group
        if self.value.shape[1] == self.scores.query.shape[1]:
            return torch.unflatten(self.value[sample, heads], 1, (-1, group))
        return self.value[sample, heads.start // group : heads.stop // group][:, :, None]


def _softmax(s: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities of the keys beside the sink, and each row's largest score; 0 in rows that see nothing."""
    top = s.amax(-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink[..., None])
    top = top.masked_fill(top == -torch.inf, 0.0)
    p = (s - top).exp_()
    total = p.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink[..., None] - top).exp()
    return p.div_(total.clamp_min(torch.finfo(s.dtype).tiny)), top


def _doubts(part: Scores, keys: slice, p: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """What p_ij is off, relatively: a_i |k_j| + b_i; (samples, key heads, group, rows) each."""
    square = part.key[:, :, keys].square().sum(-1)
    typical = torch.matmul(p, square[:, :, None, :, None]).squeeze(-1).sqrt()
    rounding = Rounding.of(part, p.shape[-1])
    floor = rounding.floor(typical.flatten(1, 2), top.squeeze(-1).flatten(1, 2))
    return part.group_heads(rounding.slope), part.group_heads(floor)


def _add_mass(
    sums: Sums,
    where: tuple[slice, slice, slice],
    part: Scores,
    p: Tensor,
    s: Tensor,
    top: Tensor,
    weight: Tensor,
) -> None:
    keys = where[2]
    slope, floor = _doubts(part, keys, p, top)
    counted = weight[:, None, None].to(p.dtype).expand(p.shape[:-1])
    rows = torch.stack([counted, counted * slope, counted * floor], -2)
    mass, sloped, floored = torch.matmul(rows, p).flatten(1, 2).double().unbind(-2)
    length = torch.linalg.vector_norm(part.key[:, :, keys].double(), dim=-1)
    length = length.repeat_interleave(part.group, 1)
    sums.mass[where] += mass
    below = underflow_bound(p.dtype) * weight.sum(-1).double()[:, None, None]
    sums.mass_error[where] += sloped * length + floored + below
    shown = p if bool((weight > 0).all()) else p * (weight > 0)[:, None, None, :, None]
    most = shown.amax(-2).flatten(1, 2).double()
    sums.maximum[where] = torch.maximum(sums.maximum[where], most)


def _add_removal(
    sums: Sums,
    where: tuple[slice, slice, slice],
    part: Scores,
    row: tuple[Tensor, Tensor, Tensor | None, Tensor],
    values: Tensor,
    weight: Tensor,
) -> None:
    p, s, sink, top = row
    output = torch.matmul(p, values)
    counted = weight[:, None, None].to(p.dtype).expand(p.shape[:-1])
    sums.square[where] += torch.matmul(counted[..., None, :], p * p).squeeze(-2).flatten(1, 2).double()
    # A row that sees one key has no output without it.
    several = part.visible.counts > 1
    counted = counted * (part.group_heads(several) if several.shape[1] > 1 else several[:, None])
    ratio = (p / (1 - p).clamp_min(0.5)).square_()  # where p > 1/2 it is put right below
    size = output.square().sum(-1)[..., :, None] + values.square().sum(-1)[..., None, :]
    distance = (size - 2 * torch.matmul(output, values.mT)).clamp_min_(0.0)
    change = distance.mul_(ratio)
    largest = p.amax(-1)
    alone = largest > 0.5
    if bool(alone.any()):
        _without_largest(change, ratio, size, (p, s, sink), values, alone)
    slope, floor = _doubts(part, where[2], p, top)
    length = torch.linalg.vector_norm(part.key[:, :, None, where[2]], dim=-1)[..., None, :]
    size.mul_(ratio)
    rows = torch.stack([counted * slope, counted * floor], -2)
    sloped, floored = torch.matmul(rows, size).unbind(-2)
    sums.removal[where] += torch.matmul(counted[..., None, :], change).squeeze(-2).flatten(1, 2).double()
    error = sloped * length.squeeze(-2) + floored
    sums.removal_error[where] += error.flatten(1, 2).double()


def _without_largest(
    change: Tensor,
    ratio: Tensor,
    size: Tensor,
    row: tuple[Tensor, Tensor, Tensor | None],
    values: Tensor,
    alone: Tensor,
) -> None:
    """Write p^2 |o^(-j) - v_j|^2 in place for the one key of each row that has more than half of it."""
    p, s, sink = row
    inside = alone.nonzero(as_tuple=True)
    shape = (*p.shape[:3], *values.shape[-2:])
    others, at = s[inside], p[inside].argmax(-1)
    number = torch.arange(len(at), device=at.device)
    others[number, at] = -torch.inf
    beside = None if sink is None else sink[inside]
    rest, _ = _softmax(others, beside)
    every = values.expand(shape)
    places = torch.unique(torch.stack(inside[:3]), dim=1)
    for sample, head, member in places.T.tolist():
        mine = (inside[0] == sample) & (inside[1] == head) & (inside[2] == member)
        v = every[sample, head, member]
        own, row_of = at[mine], inside[3][mine]
        without = rest[mine] @ v
        squared = (without - v[own]).square().sum(-1)
        most = p[sample, head, member, row_of, own].square()
        whole = without.square().sum(-1) + v[own].square().sum(-1)
        change[sample, head, member, row_of, own] = most * squared
        ratio[sample, head, member, row_of, own] = most
        size[sample, head, member, row_of, own] = whole

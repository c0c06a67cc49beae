"""Correlations over the keys of each attention row, partial and rank ones too, from sums over the keys.

What depends on the keys alone enters by matrix products, so that some dozens of variables (shuffles of one,
say) cost little more than one. Everything is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, groupby
from typing import NamedTuple

import torch
from torch import Tensor

_CONSTANT = 1e-10
"""A variable that varies by less than this share of its mean square, or is explained to less, is constant."""


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Centred second moments over the keys of each row: (batch, heads, rows), of features (..., features).

    Of attention (the logits), the logarithm of the distance, and features of the keys.
    """

    names: tuple[str, ...]
    """Of the features; those of which there are pairs first."""
    count: Tensor
    """(batch, heads or 1, rows)"""
    attention: Tensor
    distance: Tensor
    """(batch, heads or 1, rows)"""
    attention_distance: Tensor
    squares: Tensor
    with_attention: Tensor
    with_distance: Tensor
    """With the first features, those that may be partial."""
    pairs: Mapping[str, Tensor]
    """Control -> its moments with the same features."""
    _sink: tuple[Tensor, Tensor, Tensor, Tensor]
    """How far the first key lies from the mean of the others: in attention, distance and features; and
    whether the row sees it."""

    def with_first_key(self) -> RowMoments:
        """The same with the first key, left out so far, among the keys."""
        attention, distance, features, seen = self._sink
        # A point at distance d from the mean of n others adds n / (n + 1) d d'.
        share = seen * self.count / (self.count + 1)
        some = features[..., : self.with_distance.shape[-1]]
        far = (share * distance)[..., None]
        return replace(
            self,
            count=self.count + seen,
            attention=self.attention + share * attention.square(),
            distance=self.distance + share * distance.square(),
            attention_distance=self.attention_distance + share * attention * distance,
            squares=self.squares + share[..., None] * features.square(),
            with_attention=self.with_attention + (share * attention)[..., None] * features,
            with_distance=self.with_distance + far * some,
            pairs={
                name: moments + (share * features[..., self.names.index(name)])[..., None] * some
                for name, moments in self.pairs.items()
            },
        )

    def _covariance(self, one: str, other: str) -> Tensor:
        if one == other:
            own = {"attention": self.attention, "log_distance": self.distance}
            return own[one] if one in own else self.squares[..., self.names.index(one)]
        if {one, other} == {"attention", "log_distance"}:
            return self.attention_distance
        for name, moments in (("attention", self.with_attention), ("log_distance", self.with_distance)):
            if name in (one, other):
                return moments[..., self.names.index(other if one == name else one)]
        control, target = (one, other) if one in self.pairs else (other, one)
        return self.pairs[control][..., self.names.index(target)]

    def correlations(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Of log-attention with some features, (batch, heads, rows) each; NaN where one is constant."""
        found: dict[str, Tensor] = {}
        for _, run in groupby(enumerate(names), lambda one: self.names.index(one[1]) - one[0]):
            several = [name for _, name in run]
            some = slice(first := self.names.index(several[0]), first + len(several))
            product = self.squares[..., some] * self.attention[..., None]
            size = torch.where(product > 0, product, math.nan).sqrt_()
            ratio = (self.with_attention[..., some] / size).clamp_(-1.0, 1.0)
            found |= zip(several, ratio.unbind(-1), strict=True)
        return found

    def partial_correlations(self, targets: Sequence[str], given: Sequence[str]) -> dict[str, Tensor]:
        """Of log-attention with each target, what ``given`` explains of both taken out."""
        variables = ("attention", *targets, *given)
        own = {name: self._covariance(name, name) for name in variables}
        left = {
            (one, other): own[one] if one == other else self._covariance(one, other)
            for one, other in combinations_with_replacement(variables, 2)
            if one == other or not {one, other} <= set(targets)
        }
        for control in given:
            pivot = left.pop((control, control))
            # A control that others explain, or that is constant, is passed over.
            usable = pivot > _CONSTANT * own[control]
            share = torch.where(usable, 1 / torch.where(usable, pivot, 1.0), 0.0)
            shared = {
                (pair[0] if pair[1] == control else pair[1]): left.pop(pair)
                for pair in list(left)
                if control in pair
            }
            explained = {name: share * covariance for name, covariance in shared.items()}
            left = {(a, b): rest - explained[a] * shared[b] for (a, b), rest in left.items()}
        found = {}
        for target in targets:
            rests = left["attention", "attention"], left[target, target]
            none = (rests[0] <= _CONSTANT * own["attention"]) | (rests[1] <= _CONSTANT * own[target])
            size = (rests[0].clamp_min(0.0) * rests[1].clamp_min(0.0)).sqrt()
            found[target] = (left["attention", target] / size).masked_fill(none, math.nan).clamp(-1.0, 1.0)
        return found


class KeyFeatures:
    """Variables of the keys, each sample's first left out, and what their sums over any interval take.

    Args:
        features: (batch, heads or 1, keys) each, float64, of about unit size.
        heads: of the attention.
        first: (batch,), the key to leave out.
        controls: the features that may be held fixed; the logarithm of the distance always may.
        partial: the features whose correlation may be partial, the controls among them.
    """

    def __init__(
        self,
        features: Mapping[str, Tensor],
        heads: int,
        first: Tensor,
        controls: Sequence[str],
        partial: Sequence[str],
    ) -> None:
        self.first = first
        self.controls = tuple(controls)
        self.partial = tuple(partial)
        self.names = (*self.partial, *(name for name in features if name not in self.partial))
        self.stacked = torch.stack([features[name].expand(-1, heads, -1) for name in self.names], -1)
        of_first = first[:, None, None, None].expand(-1, heads, 1, len(self.names))
        self.of_first = self.stacked.gather(2, of_first)
        self.stacked.scatter_(2, of_first, 0.0)
        some = self.stacked[..., : len(self.partial)]
        products = [self.stacked, self.stacked.square()]
        products += [some * some[..., self.partial.index(name), None] for name in self.controls]
        self.sizes = [part.shape[-1] for part in products]
        self._products = torch.cat(products, -1)
        self._before: Tensor | None = None

    def sums(self, seen: Tensor) -> list[Tensor]:
        """Of features, squares and products with controls, over the keys that each row sees."""
        keys = seen.shape[3]
        count, low = seen.sum(-1), seen.to(torch.uint8).argmax(-1)
        last = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
        if seen.shape[1] > 1 or not bool(((last - low + 1 == count) | (count == 0)).all()):
            found = _sums(seen.double(), self._products[:, :, :keys])
        else:
            if self._before is None:
                self._before = torch.nn.functional.pad(self._products.cumsum(2), (0, 0, 1, 0))
            found = _places(self._before, (low + count)[:, 0])
            if bool(low.any()):
                found -= _places(self._before, low[:, 0])
        return list(torch.split(found, self.sizes, -1))


def _places(sums: Tensor, keys: Tensor) -> Tensor:
    """(batch, heads, keys, n) at some keys (batch or 1, rows)."""
    if len(keys) == 1:
        return sums[:, :, keys[0]]
    return torch.stack([own[:, some] for own, some in zip(sums, keys, strict=True)])


class Scores(NamedTuple):
    """Logits of some rows, as their softmax sees them."""

    logits: Tensor
    """(batch, heads, rows, some keys), 0 where they are hidden; the keys beyond are hidden from all rows."""
    seen: Tensor
    """(batch or 1, heads or 1, rows, some keys) bool."""

    @classmethod
    def of(cls, scores: Tensor) -> Scores:
        """Of scores that are -inf where a key is hidden."""
        seen = scores != -torch.inf
        return cls(scores.masked_fill(~seen, 0.0), seen if bool((seen != seen[:, :1]).any()) else seen[:, :1])

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """The rows of all, one after another."""
        keys = max(part.logits.shape[-1] for part in parts)
        logits, seen = zip(*(part.up_to(keys) for part in parts), strict=True)
        return cls(torch.cat(logits, 2), _along(2, seen))

    def up_to(self, keys: int) -> Scores:
        """With at least so many keys."""
        further = (0, max(0, keys - self.logits.shape[-1]))
        return Scores(*(torch.nn.functional.pad(part, further) for part in self)) if further[1] else self


def row_moments(scores: Scores, rows: slice, keys: KeyFeatures) -> RowMoments:
    """The moments over the keys that each row sees, but for the first; ``rows``: which queries these are."""
    logits, seen = scores
    heads, number = logits.shape[1], logits.shape[3]
    place = torch.arange(number, device=logits.device)
    query = torch.arange(rows.start, rows.stop, device=logits.device)
    first = keys.first[:1] if bool((keys.first == keys.first[0]).all()) else keys.first
    weight = (seen & (place != first[:, None, None, None])).double()
    count = weight.sum(-1)
    divisor = count.clamp_min(1.0)
    means, squares, *pairs = (part / divisor[..., None] for part in keys.sums(seen))
    variances = squares - means.square()
    # About their mean but for rounding, so that no digit is lost to a large one; what is left of it is rest.
    about = (logits.sum(-1) / divisor.to(logits.dtype)).double()
    away = (logits - about[..., None]).mul_(weight)
    rest = away.sum(-1) / divisor
    distance = ((query[:, None] - place).abs() + 1).double().log()
    mean_distance = (distance * weight).sum(-1) / divisor
    distance_away = (distance - mean_distance[..., None]) * weight
    of_first = keys.first[:, None, None, None].expand(-1, 1, len(query), 1)
    sink = (
        logits.gather(-1, of_first.expand(-1, heads, -1, 1))[..., 0].double() - about - rest,
        distance.T[first][:, None] - mean_distance,
        keys.of_first - means,
        seen.expand(len(of_first), -1, -1, -1).gather(-1, of_first.expand(-1, seen.shape[1], -1, 1))[..., 0],
    )
    stacked, some = keys.stacked[:, :, :number], len(keys.partial)
    return RowMoments(
        names=keys.names,
        count=count,
        attention=torch.linalg.vector_norm(away, dim=-1).square() - count * rest.square(),
        distance=distance_away.square().sum(-1),
        attention_distance=(away * distance).sum(-1) - count * rest * mean_distance,
        squares=(count[..., None] * variances).masked_fill(variances <= _CONSTANT * squares, 0.0),
        with_attention=away @ stacked - (count * rest)[..., None] * means,
        with_distance=_sums(distance_away, stacked[..., :some]),
        pairs={
            name: count[..., None] * (pair - (means * means[..., keys.partial.index(name), None])[..., :some])
            for name, pair in zip(keys.controls, pairs, strict=True)
        },
        _sink=(*sink[:3], sink[3].double()),
    )


def join_moments(parts: Sequence[RowMoments]) -> RowMoments:
    """The moments of further rows, one after another."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def rows(name: str) -> Tensor:
        return _along(-1, [getattr(part, name) for part in parts])

    def features(name: str) -> Tensor:
        return _along(-2, [getattr(part, name) for part in parts])

    return replace(
        first,
        count=rows("count"),
        attention=rows("attention"),
        distance=rows("distance"),
        attention_distance=rows("attention_distance"),
        squares=features("squares"),
        with_attention=features("with_attention"),
        with_distance=features("with_distance"),
        pairs={name: _along(-2, [part.pairs[name] for part in parts]) for name in first.pairs},
        _sink=(
            _along(-1, [part._sink[0] for part in parts]),
            _along(-1, [part._sink[1] for part in parts]),
            _along(-2, [part._sink[2] for part in parts]),
            _along(-1, [part._sink[3] for part in parts]),
        ),
    )


def _along(dim: int, tensors: Sequence[Tensor]) -> Tensor:
    """One after another; what is the same for all samples or heads may be there once."""
    batch, heads = (max(tensor.shape[at] for tensor in tensors) for at in (0, 1))
    return torch.cat([tensor.expand(batch, heads, *tensor.shape[2:]) for tensor in tensors], dim)


def _sums(weight: Tensor, values: Tensor) -> Tensor:
    """Over the keys: weight (batch, heads or 1, rows, keys) times values (batch, heads, keys, n)."""
    if weight.shape[1] == values.shape[1]:
        return weight @ values
    batch, heads, keys, number = values.shape
    flat = weight[:, 0] @ values.transpose(1, 2).reshape(batch, keys, heads * number)
    return torch.unflatten(flat, -1, (heads, number)).transpose(1, 2)


class KeyRanks:
    """The order of a variable of the keys (batch, heads, keys), for rank correlations with it."""

    def __init__(self, variable: Tensor) -> None:
        ordered, self.order = variable.sort(-1)
        self.begin, self.end = _runs(ordered)

    def among(self, keep: Tensor) -> Tensor:
        """Ranks from 0 among those kept (batch, heads, rows, some keys), equal values sharing their mean."""
        some = keep.shape[-1]
        keep = torch.nn.functional.pad(keep, (0, self.order.shape[-1] - some))
        order, begin, end = (part[:, :, None].expand_as(keep) for part in (self.order, self.begin, self.end))
        before = torch.nn.functional.pad(keep.gather(-1, order).cumsum(-1), (1, 0))
        ranks = (before.gather(-1, begin) + before.gather(-1, end + 1) - 1).double() / 2
        return torch.empty_like(ranks).scatter_(-1, order, ranks)[..., :some]


def rank_correlations(scores: Scores, first: Tensor, keys: KeyRanks) -> tuple[Tensor, Tensor]:
    """Spearman's, over the keys that each row sees, without and with the first; (batch, heads, rows)."""
    logits, seen = scores
    keep = seen.expand(logits.shape)
    both = _ranks(logits, keep), keys.among(keep)
    of_first = first[:, None, None, None].expand(*logits.shape[:3], 1)
    without = keep.scatter(-1, of_first, False)
    there = keep.gather(-1, of_first)
    found = []
    for kept, ranks in ((without, tuple(_left_out(rank, of_first, there) for rank in both)), (keep, both)):
        middle = (kept.sum(-1, keepdim=True).double() - 1) / 2
        one, other = ((rank - middle) * kept for rank in ranks)
        size = (one.square().sum(-1) * other.square().sum(-1)).sqrt()
        found.append(torch.where(size > 0, (one * other).sum(-1) / size, math.nan))
    return found[0], found[1]


def _left_out(ranks: Tensor, one: Tensor, there: Tensor) -> Tensor:
    """Ranks without one of the keys, where it is among those ranked."""
    own = ranks.gather(-1, one)
    return ranks - there * ((ranks > own).double() + (ranks == own).double() / 2)


def _ranks(values: Tensor, keep: Tensor) -> Tensor:
    """Ranks from 0 among those kept, equal values sharing the mean of theirs."""
    ordered, order = values.masked_fill(~keep, torch.inf).sort(-1)
    begin, end = _runs(ordered)
    return values.new_empty(values.shape, dtype=torch.float64).scatter_(-1, order, (begin + end).double() / 2)


def _runs(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Where the run of equal values begins and ends in which each one stands."""
    place = torch.arange(ordered.shape[-1], device=ordered.device).expand(ordered.shape)
    starts = torch.nn.functional.pad(ordered[..., 1:] != ordered[..., :-1], (1, 0), value=True)
    begin = place.masked_fill(~starts, 0).cummax(-1).values
    stops = starts.roll(-1, -1)
    stops[..., -1] = True
    end = place.masked_fill(~stops, ordered.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return begin, end

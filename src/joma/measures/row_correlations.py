"""Correlations over the keys of each attention row, partial and rank ones too, from sums over the keys.

What depends on the keys alone enters by matrix products, so that some dozens of variables (shuffles of one,
say) cost little more than one. Everything is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    """Of the features."""
    count: Tensor
    """(batch, heads or 1, rows)"""
    attention: Tensor
    distance: Tensor
    attention_distance: Tensor
    squares: Tensor
    with_attention: Tensor
    with_distance: Tensor
    pairs: Mapping[str, Tensor]
    """Control -> its moments with the first features, those that may be partial, as ``with_distance``."""
    _sink: tuple[Tensor, Tensor, Tensor, Tensor]
    """How far the first key lies from the mean of the others: in attention, distance and features; and
    whether the row sees it."""

    def with_first_key(self) -> RowMoments:
        """The same with the first key, left out so far, among the keys."""
        attention, distance, features, seen = self._sink
        # A point at distance d from the mean of n others adds n / (n + 1) d d'.
        share = seen * self.count / (self.count + 1)
        some = self.with_distance.shape[-1]
        return replace(
            self,
            count=self.count + seen,
            attention=self.attention + share * attention.square(),
            distance=self.distance + share * distance.square(),
            attention_distance=self.attention_distance + share * attention * distance,
            squares=self.squares + share[..., None] * features.square(),
            with_attention=self.with_attention + (share * attention)[..., None] * features,
            with_distance=self.with_distance + (share * distance)[..., None] * features[..., :some],
            pairs={
                name: moments
                + (share * features[..., self.names.index(name)])[..., None] * features[..., :some]
                for name, moments in self.pairs.items()
            },
        )

    def covariance(self, one: str, other: str) -> Tensor:
        """Of two variables, one of which is ``attention``, ``log_distance`` or a control."""
        if one == other == "attention":
            return self.attention
        if one == other == "log_distance":
            return self.distance
        if {one, other} == {"attention", "log_distance"}:
            return self.attention_distance
        for name, moments in (("attention", self.with_attention), ("log_distance", self.with_distance)):
            if name in (one, other):
                return moments[..., self.names.index(other if one == name else one)]
        if one == other:
            return self.squares[..., self.names.index(one)]
        if one in self.pairs:
            return self.pairs[one][..., self.names.index(other)]
        return self.pairs[other][..., self.names.index(one)]

    def correlations(self) -> Tensor:
        """Of log-attention with every feature, (batch, heads, rows, features); NaN where one is constant."""
        product = self.squares * self.attention[..., None]
        return torch.where(product > 0, self.with_attention / product.sqrt(), math.nan).clamp(-1.0, 1.0)

    def correlation(self, name: str, given: Sequence[str] = ()) -> Tensor:
        """Of log-attention with one variable, what ``given`` explains of both taken out."""
        variables = ["attention", name, *given]
        covariances = torch.stack(
            [torch.stack([self.covariance(a, b) for b in variables], -1) for a in variables], -2
        )
        own = covariances.diagonal(dim1=-2, dim2=-1).clone()
        for at in range(2, len(variables)):
            pivot, column = covariances[..., at, at], covariances[..., at]
            # A control that others explain, or that is constant, is passed over.
            usable = pivot > _CONSTANT * own[..., at]
            share = torch.where(usable, 1 / torch.where(usable, pivot, 1.0), 0.0)
            covariances = covariances - share[..., None, None] * (column[..., None] * column[..., None, :])
        left = covariances.diagonal(dim1=-2, dim2=-1)[..., :2]
        explained = (left <= _CONSTANT * own[..., :2]).any(-1)
        correlation = covariances[..., 0, 1] / left.clamp_min(0.0).prod(-1).sqrt()
        return correlation.masked_fill(explained, math.nan).clamp(-1.0, 1.0)


class KeyFeatures:
    """Variables of the keys, and what their sums over any interval of keys take.

    Args:
        features: (batch, heads or 1, keys) each, float64, of about unit size.
        heads: of the attention.
        controls: the features that may be held fixed; the logarithm of the distance always may.
        partial: the features whose correlation may be partial, the controls among them.
    """

    def __init__(
        self, features: Mapping[str, Tensor], heads: int, controls: Sequence[str], partial: Sequence[str]
    ) -> None:
        self.controls = tuple(controls)
        self.partial = tuple(partial)
        self.names = (*self.partial, *(name for name in features if name not in self.partial))
        self.stacked = torch.stack([features[name].expand(-1, heads, -1) for name in self.names], -1)
        some = self.stacked[..., : len(self.partial)]
        products = [self.stacked, self.stacked.square()]
        products += [some * some[..., self.partial.index(name), None] for name in self.controls]
        self.sizes = [part.shape[-1] for part in products]
        self.products = torch.cat(products, -1)
        self._before: Tensor | None = None

    def sums(self, seen: Tensor, first: Tensor) -> list[Tensor]:
        """Of features, squares and products with controls, over the keys that each row sees but the first."""
        batch, _, _, keys = seen.shape
        count = seen.sum(-1)
        low = seen.to(torch.uint8).argmax(-1)
        last = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
        if seen.shape[1] > 1 or not bool(((last - low + 1 == count) | (count == 0)).all()):
            weight = (seen & _but_first(keys, first)).double()
            return list(torch.split(_sums(weight, self.products), self.sizes, -1))
        if self._before is None:
            self._before = torch.nn.functional.pad(self.products.cumsum(2), (0, 0, 1, 0))
        low, high = low[:, 0], (low + count)[:, 0]
        sample = torch.arange(batch, device=seen.device)[:, None]
        before = self._before.transpose(1, 2)
        found = before[sample, high] - before[sample, low]
        inside = ((first[:, None] >= low) & (first[:, None] < high)).double()
        of_first = self.products.transpose(1, 2)[sample[:, 0], first]
        found = found - inside[..., None, None] * of_first[:, None]
        return list(torch.split(found.transpose(1, 2), self.sizes, -1))


def row_moments(logits: Tensor, seen: Tensor, first: Tensor, rows: slice, keys: KeyFeatures) -> RowMoments:
    """The moments over the keys that each row sees, but for the first.

    Args:
        logits: (batch, heads, rows, keys), float64, 0 where they are hidden.
        seen: (batch, heads or 1, rows, keys) bool.
        first: (batch,), the key to leave out.
        rows: which queries these are.
        keys: what they are compared with.
    """
    heads, number = logits.shape[1], logits.shape[3]
    place = torch.arange(number, device=logits.device)
    query = torch.arange(rows.start, rows.stop, device=logits.device)
    weight = (seen & _but_first(number, first)).double()
    count = weight.sum(-1)
    divisor = count.clamp_min(1.0)
    means, squares, *pairs = keys.sums(seen, first)
    means = means / divisor[..., None]
    size = squares
    squares = squares - count[..., None] * means.square()
    of_first = first[:, None, None, None]
    own = logits.gather(-1, of_first.expand(-1, heads, len(query), 1))[..., 0]
    middle = (logits.sum(-1) - own) / divisor
    distance = ((query[:, None] - place).abs() + 1).double().log()
    mean_distance = (distance * weight).sum(-1) / divisor
    away = (logits - middle[..., None]).mul_(weight)
    distance_away = (distance - mean_distance[..., None]) * weight
    sink = (
        own - middle,
        distance[:, first].T[:, None] - mean_distance,
        keys.stacked.gather(2, of_first.expand(-1, heads, 1, len(keys.names))) - means,
        seen.gather(-1, of_first.expand(-1, seen.shape[1], len(query), 1))[..., 0].double(),
    )
    some = len(keys.partial)
    return RowMoments(
        names=keys.names,
        count=count,
        attention=torch.linalg.vecdot(away, away),
        distance=distance_away.square().sum(-1).expand(-1, heads, -1),
        attention_distance=torch.linalg.vecdot(away, distance.expand_as(away)),
        squares=squares.masked_fill(squares <= _CONSTANT * size, 0.0),
        with_attention=away @ keys.stacked,
        with_distance=_sums(distance_away, keys.stacked[..., :some]),
        pairs={
            name: pair - count[..., None] * (means * means[..., keys.partial.index(name), None])[..., :some]
            for name, pair in zip(keys.controls, pairs, strict=True)
        },
        _sink=sink,
    )


def joined(parts: Sequence[RowMoments]) -> RowMoments:
    """The moments of further rows, one after another."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], -1)

    def features(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], -2)

    return replace(
        first,
        count=torch.cat(_alike([part.count for part in parts]), -1),
        attention=rows("attention"),
        distance=rows("distance"),
        attention_distance=rows("attention_distance"),
        squares=features("squares"),
        with_attention=features("with_attention"),
        with_distance=features("with_distance"),
        pairs={name: torch.cat([part.pairs[name] for part in parts], -2) for name in first.pairs},
        _sink=(
            torch.cat([part._sink[0] for part in parts], -1),
            torch.cat(_alike([part._sink[1] for part in parts]), -1),
            torch.cat([part._sink[2] for part in parts], -2),
            torch.cat(_alike([part._sink[3] for part in parts]), -1),
        ),
    )


def _alike(parts: list[Tensor]) -> list[Tensor]:
    """With as many heads each."""
    heads = max(part.shape[1] for part in parts)
    return [part.expand(-1, heads, -1) for part in parts]


def _but_first(keys: int, first: Tensor) -> Tensor:
    return torch.arange(keys, device=first.device) != first[:, None, None, None]


def _sums(weight: Tensor, values: Tensor) -> Tensor:
    """Over the keys: weight (batch, heads or 1, rows, keys) times values (batch, heads, keys, n)."""
    if weight.shape[1] == values.shape[1]:
        return weight @ values
    batch, heads, keys, number = values.shape
    flat = weight[:, 0] @ values.transpose(1, 2).reshape(batch, keys, heads * number)
    return torch.unflatten(flat, -1, (heads, number)).transpose(1, 2)


def rank_correlation(block: Tensor, keep: Tensor, predictor: Tensor) -> Tensor:
    """Spearman's, over the keys kept in each row; (batch, heads, rows), float64."""
    count = keep.sum(-1)
    first, second = (
        _ranks(values.double(), keep) for values in (block, predictor[:, :, None].expand(block.shape))
    )
    middle = (count[..., None].double() - 1) / 2
    first, second = (((ranks - middle) * keep) for ranks in (first, second))
    size = (first.square().sum(-1) * second.square().sum(-1)).sqrt()
    return torch.where(size > 0, (first * second).sum(-1) / size, math.nan)


def _ranks(values: Tensor, keep: Tensor) -> Tensor:
    """Ranks from 0 among those kept, equal values sharing the mean of theirs."""
    ordered, order = values.masked_fill(~keep, torch.inf).sort(-1)
    place = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    starts = torch.ones_like(keep.expand_as(order))
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # A run of equal values ends where the next begins.
    begin = place.masked_fill(~starts, 0).cummax(-1).values
    stops = starts.roll(-1, -1)
    stops[..., -1] = True
    end = place.masked_fill(~stops, values.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return torch.empty_like(values).scatter_(-1, order, (begin + end).to(values.dtype) / 2)

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
    """Control -> its moments with all features."""
    _sink: tuple[Tensor, Tensor, Tensor, Tensor]
    """How far the first key lies from the mean of the others: in attention, distance and features; and
    whether the row sees it."""

    def with_first_key(self) -> RowMoments:
        """The same with the first key, left out so far, among the keys."""
        attention, distance, features, seen = self._sink
        # A point at distance d from the mean of n others adds n / (n + 1) d d'.
        share = seen * self.count / (self.count + 1)
        return replace(
            self,
            count=self.count + seen,
            attention=self.attention + share * attention.square(),
            distance=self.distance + share * distance.square(),
            attention_distance=self.attention_distance + share * attention * distance,
            squares=self.squares + share[..., None] * features.square(),
            with_attention=self.with_attention + (share * attention)[..., None] * features,
            with_distance=self.with_distance + (share * distance)[..., None] * features,
            pairs={
                name: moments + (share * features[..., self.names.index(name)])[..., None] * features
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


def row_moments(
    logits: Tensor,
    seen: Tensor,
    first: Tensor,
    rows: slice,
    features: Mapping[str, Tensor],
    controls: Sequence[str],
) -> RowMoments:
    """The moments over the keys that each row sees, but for the first.

    Args:
        logits: (batch, heads, rows, keys), float64; hidden ones may be anything finite.
        seen: (batch, heads or 1, rows, keys) bool.
        first: (batch,), the key to leave out.
        rows: which queries these are.
        features: variables of the keys, (batch, heads or 1, keys), float64, of about unit size.
        controls: the features that may be held fixed; the logarithm of the distance always may.
    """
    heads, keys = logits.shape[1], logits.shape[3]
    names = tuple(features)
    place = torch.arange(keys, device=logits.device)
    query = torch.arange(rows.start, rows.stop, device=logits.device)
    weight = (seen & (place != first[:, None, None, None])).double()
    count = weight.sum(-1)
    divisor = count.clamp_min(1.0)
    stacked = torch.stack([features[name].expand(-1, heads, -1) for name in names], -1)
    at = {name: names.index(name) for name in controls}
    products = [stacked, stacked.square(), *(stacked * stacked[..., i, None] for i in at.values())]
    means, squares, *pairs = _sums(weight, torch.cat(products, -1)).chunk(len(products), -1)
    means = means / divisor[..., None]
    size = squares
    squares = squares - count[..., None] * means.square()
    # The first key's place, of each sample.
    middle = (logits * weight).sum(-1) / divisor
    distance = ((query[:, None] - place).abs() + 1).double().log()
    mean_distance = (distance * weight).sum(-1) / divisor
    away = (logits - middle[..., None]) * weight
    distance_away = (distance - mean_distance[..., None]) * weight
    of_first = first[:, None, None, None]
    sink = (
        logits.gather(-1, of_first.expand(-1, heads, len(query), 1))[..., 0] - middle,
        distance[:, first].T[:, None] - mean_distance,
        stacked.gather(2, of_first.expand(-1, heads, 1, len(names))) - means,
        seen.gather(-1, of_first.expand(-1, seen.shape[1], len(query), 1))[..., 0].double(),
    )
    return RowMoments(
        names=names,
        count=count,
        attention=away.square().sum(-1),
        distance=distance_away.square().sum(-1).expand(-1, heads, -1),
        attention_distance=(away * distance).sum(-1),
        squares=squares.masked_fill(squares <= _CONSTANT * size, 0.0),
        with_attention=away @ stacked,
        with_distance=_sums(distance_away, stacked),
        pairs={
            name: pair - count[..., None] * means * means[..., i, None]
            for (name, i), pair in zip(at.items(), pairs, strict=True)
        },
        _sink=sink,
    )


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
    values = values.masked_fill(~keep, torch.inf).contiguous()
    ordered = values.sort(-1).values
    below = torch.searchsorted(ordered, values)
    upto = torch.searchsorted(ordered, values, right=True)
    return (below + upto - 1).double() / 2

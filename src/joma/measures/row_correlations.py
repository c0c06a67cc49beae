"""Correlations over the keys of each attention row, partial and rank ones too, from sums over the keys.

What depends on the keys alone enters by matrix products, so that some dozens of variables (shuffles of one,
say) cost little more than one. Everything is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_CONSTANT = 1e-10
"""A variable that varies by less than this share of its mean square, or is explained to less, is constant."""


class RowMoments:
    """Second moments, over the keys that each row keeps, of logits, distance and the keys' features.

    Args:
        logits: (batch, heads, rows, keys), float64, finite.
        keep: which keys count in which row, broadcastable to the logits.
        rows: which queries these are.
        features: variables of the keys, (batch, heads or 1, keys), float64, of about unit size.
        controls: names of features that may be held fixed; the logarithm of the distance always may.
    """

    def __init__(
        self,
        logits: Tensor,
        keep: Tensor,
        rows: slice,
        features: Mapping[str, Tensor],
        controls: Sequence[str],
    ) -> None:
        weight = keep.double()
        self.count = weight.sum(-1).clamp_min(1.0)
        self.logits = (logits - ((logits * weight).sum(-1) / self.count)[..., None]) * weight
        keys = logits.shape[-1]
        place = torch.arange(keys, device=logits.device)
        query = torch.arange(rows.start, rows.stop, device=logits.device)
        distance = ((query[:, None] - place).abs() + 1).double().log()
        self.centred_distance = (distance - ((distance * weight).sum(-1) / self.count)[..., None]) * weight
        self.names = list(features)
        heads = logits.shape[1]
        stacked = torch.stack([features[n].expand(-1, heads, -1) for n in self.names], -1)
        # (batch, heads, rows, features): sums over the keys as matrix products
        means = weight @ stacked / self.count[..., None]
        self.with_logits = self.logits @ stacked
        self.with_distance = self.centred_distance @ stacked
        squares = weight @ stacked.square()
        self.variances = squares - self.count[..., None] * means.square()
        self.variances = self.variances.masked_fill(self.variances <= _CONSTANT * squares, 0.0)
        self.pairs: dict[tuple[str, str], Tensor] = {}
        for one in controls:
            at = self.names.index(one)
            products = weight @ (stacked * stacked[..., at, None])
            products -= self.count[..., None] * means * means[..., at, None]
            for number, other in enumerate(self.names):
                self.pairs[one, other] = self.pairs[other, one] = products[..., number]
        self.logit_variance = self.logits.square().sum(-1)

    def attention_varies(self, resolution: Tensor) -> Tensor:
        """Where the logits differ by more than the rounding of their dtype."""
        return self.logit_variance > self.count * (8 * resolution).square()

    def covariance(self, one: str, other: str) -> Tensor:
        """Of two variables, among them ``attention`` and ``log_distance``; (batch, heads, rows)."""
        if one == other:
            match one:
                case "attention":
                    return self.logit_variance
                case "log_distance":
                    return self.centred_distance.square().sum(-1)
            return self.variances[..., self.names.index(one)]
        both = {one, other}
        if both == {"attention", "log_distance"}:
            return (self.logits * self.centred_distance).sum(-1)
        if "attention" in both:
            return self.with_logits[..., self.names.index(next(iter(both - {"attention"})))]
        if "log_distance" in both:
            return self.with_distance[..., self.names.index(next(iter(both - {"log_distance"})))]
        return self.pairs[one, other]

    def correlation(self, name: str, given: Sequence[str] = ()) -> Tensor:
        """Of log-attention with a variable, what ``given`` explains of both taken out."""
        variables = ["attention", name, *given]
        covariances = torch.stack(
            [torch.stack([self.covariance(a, b) for b in variables], -1) for a in variables], -2
        )
        own = covariances.diagonal(dim1=-2, dim2=-1).clone()
        # A control that others explain, or that is constant, is passed over.
        for at in range(2, len(variables)):
            pivot = covariances[..., at, at]
            column = covariances[..., at]
            usable = pivot > _CONSTANT * own[..., at]
            removed = (
                column[..., :, None] * column[..., None, :] / torch.where(usable, pivot, 1.0)[..., None, None]
            )
            covariances = covariances - removed * usable[..., None, None]
        left = covariances.diagonal(dim1=-2, dim2=-1)[..., :2]
        explained = (left <= _CONSTANT * own[..., :2]).any(-1)
        correlation = covariances[..., 0, 1] / left.clamp_min(0.0).prod(-1).sqrt()
        return correlation.masked_fill(explained, torch.nan).clamp(-1.0, 1.0)


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

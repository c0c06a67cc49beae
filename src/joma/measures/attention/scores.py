"""What a softmax is taken of: queries, keys, and all that a model does to their products."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from joma.measures.attention.visible_keys import VisibleKeys, take


@dataclass(frozen=True)
class Scores:
    """s_ij = softcap(scale * q_i . k_j) + bias_ij over the visible keys j of row i.

    Where no softcap is in the way, ``centred`` moves the keys of each head to mean zero: s_ij changes by
    a number of the row alone, which no probability knows of, and float32 keeps the digits that matter.
    """

    query: Tensor
    """(batch, heads, rows, width)"""
    key: Tensor
    """(batch, key heads, keys, width); key head g serves the query heads g n, ..., g n + n - 1."""
    scale: float
    visible: VisibleKeys
    positions: Tensor
    """(rows,) int64: where each query stands among the keys."""
    softcap: float | None = None
    bias: Tensor | None = None
    """(batch or 1, heads or 1, rows or 1, keys or 1)"""
    centre: Tensor | None = field(default=None, repr=False)
    """(batch, key heads, width): what was taken from the keys."""
    typical: Tensor | None = field(default=None, repr=False)
    """(batch, key heads): the median distance of the keys from their mean."""

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.query.shape[1] // max(self.key.shape[1], 1)

    @property
    def linear(self) -> bool:
        """Whether the scores are linear in the keys, so that E[s] = scale q . E[k]."""
        return self.softcap is None and self.bias is None

    def group_heads(self, heads: Tensor) -> Tensor:
        """(batch, heads, ...) -> (batch, key heads, group, ...), a view."""
        return torch.unflatten(heads, 1, (self.key.shape[1], self.group))

    def take(self, sample: slice, heads: slice, rows: Tensor | slice) -> Scores:
        """The rows of some samples and heads; the heads are whole groups or lie within one."""
        group = self.group
        key_heads = slice(heads.start // group, (heads.stop - 1) // group + 1)
        bias = None if self.bias is None else take(self.bias, sample, heads, rows)
        return replace(
            self,
            query=self.query[sample, heads][:, :, rows],
            key=self.key[sample, key_heads],
            visible=self.visible.take(sample, heads, rows),
            positions=self.positions[rows],
            bias=bias,
            centre=None if self.centre is None else self.centre[sample, key_heads],
            typical=None if self.typical is None else self.typical[sample, key_heads],
        )

    def capped_products(self, keys: slice) -> Tensor:
        """scale q . k, soft-capped, of some keys: (batch, key heads, group, rows, keys)."""
        products = torch.matmul(self.group_heads(self.query) * self.scale, self.key[:, :, None, keys].mT)
        if self.softcap is not None:
            products.div_(self.softcap).tanh_().mul_(self.softcap)
        return products

    def bias_and_hide(self, products: Tensor, keys: slice) -> Tensor:
        """Make scores of ``capped_products``, in place: the bias added, -inf where a key is hidden."""
        if self.bias is not None:
            products.add_(self._by_group(self.bias, keys))
        visible = self.visible
        if visible.mask is not None:
            seen = self._by_group(visible.mask, keys)
        else:
            place = torch.arange(keys.start, keys.stop, device=products.device)
            seen = (place >= visible.first[..., None]) & (place < visible.stop[..., None])
            if bool(seen.all()):
                return products
            seen = seen[:, None, None]
        return products.masked_fill_(~seen, -torch.inf)

    def _by_group(self, array: Tensor, keys: slice) -> Tensor:
        """(batch or 1, heads or 1, rows or 1, keys or 1) -> (.., key heads or 1, group or 1, .., keys)."""
        array = array if array.shape[-1] == 1 else array[..., keys]
        return array[:, :, None] if array.shape[1] == 1 else self.group_heads(array)

    def centre_keys(self, dtype: torch.dtype) -> Scores:
        """In ``dtype``, keys without their mean over those in use where that changes no probability."""
        key = self.key.to(dtype)
        place = torch.arange(key.shape[2], device=key.device)
        begin, end = self.visible.begin[:, None], self.visible.end[:, None]
        used = ((place >= begin) & (place < end)).to(dtype)[:, None]
        centre = _mean(key, used)
        length = torch.linalg.vector_norm(key - centre[:, :, None], dim=-1)
        # A sink's key may be a hundred times longer than the others; they are what must be centred.
        length = length.masked_fill(used == 0, torch.nan)
        typical = length.nanmedian(-1).values
        if self.softcap is None:
            centre = _mean(key, used * (length <= OUTLYING * typical[..., None]))
            key = key - centre[:, :, None]
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(
            self,
            query=self.query.to(dtype),
            key=key,
            bias=bias,
            centre=None if self.softcap else centre,
            typical=typical,
        )

    def offset(self) -> Tensor | float:
        """scale q . centre: what centring took from every score of a row; (batch, heads, rows) or 0."""
        if self.centre is None:
            return 0.0
        products = torch.matmul(self.group_heads(self.query), self.centre[:, :, None, :, None])
        return products.squeeze(-1).flatten(1, 2) * self.scale

    def offset_error(self) -> Tensor | float:
        """Its rounding: that of products which cancel, where the query does not see the keys' mean."""
        if self.centre is None:
            return 0.0
        size = torch.linalg.vector_norm(self.centre, dim=-1).repeat_interleave(self.group, 1)
        error: Tensor = self.rounding * self.length() * size[..., None]
        return error

    @property
    def rounding(self) -> float:
        """What a computed score is off, relative to its size and that of its products."""
        return ROUNDING * torch.finfo(self.query.dtype).eps

    def length(self) -> Tensor:
        """(batch, heads, rows): times a key's length, what the rounding of its score is relative to.

        At random, products of any number are off by a few units. Where they round alike, as those of one and
        the same number do, many add up.
        """
        alike = max(1.0, self.query.shape[-1] / ALIKE)
        length: Tensor = torch.linalg.vector_norm(self.query, dim=-1) * (abs(self.scale) * alike)
        return length

    def longest(self) -> Tensor:
        """(batch, heads, 1): the length of the longest key."""
        longest: Tensor = torch.linalg.vector_norm(self.key, dim=-1).amax(-1)
        return longest.repeat_interleave(self.group, 1)[..., None]

    def at(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The (centred) score of one key per row, -inf where it is not seen; ``keys`` (batch or 1, rows).

        And the length of that key, (batch, heads, rows).
        """
        batch, _, rows, width = self.query.shape
        index = keys.clamp(0, self.key.shape[2] - 1).expand(batch, rows)
        chosen = self.key.gather(2, index[:, None, :, None].expand(-1, self.key.shape[1], -1, width))
        scores = (self.group_heads(self.query) * chosen[:, :, None]).sum(-1).flatten(1, 2) * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.bias is not None:
            bias = self.bias.expand(batch, -1, rows, self.key.shape[2])
            scores = scores + bias.gather(
                -1, index[:, None, :, None].expand(-1, bias.shape[1], -1, 1)
            ).squeeze(-1)
        length = torch.linalg.vector_norm(chosen, dim=-1).repeat_interleave(self.group, 1)
        return scores.masked_fill(~self.visible.sees(keys), -torch.inf), length


def _mean(key: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean over the keys; 0 where there is no weight, in a sample of nothing but padding."""
    total = weight.sum(-1, keepdim=True).clamp_min(1.0)
    return torch.matmul((weight / total).expand(*key.shape[:3])[:, :, None], key).squeeze(2)


@dataclass
class Moments:
    """Sums over the keys of each row, (batch, heads, rows) each; rows that see nothing hold anything."""

    log_normaliser: Tensor
    """log sum_j exp s_j of the centred scores."""
    entropy: Tensor
    error: Tensor
    """Estimate of the entropy's rounding error, in nats."""
    normaliser_error: Tensor
    """Of the logarithm of the normaliser."""
    score_error: Tensor
    """Of every score."""
    powers: dict[float, Tensor] = field(default_factory=dict)
    """a -> log sum_j p_j^a"""
    mean_key: Tensor | None = None
    """E[j - position]"""
    key_spread: Tensor | None = None
    """Standard deviation of j."""
    largest: Tensor | None = None
    """max_j s_j of the centred scores."""


@dataclass(frozen=True)
class WantedMoments:
    """Which moments beyond the entropy a call needs."""

    powers: tuple[float, ...] = ()
    mean_key: bool = False
    key_spread: bool = False
    largest: bool = False

    @property
    def nonlinear(self) -> bool:
        """Whether something is wanted that is no linear function of the probabilities."""
        return self.key_spread or self.largest or bool(self.powers)


def empty_moments(scores: Scores, wanted: WantedMoments) -> Moments:
    """Room for the results."""

    def room() -> Tensor:
        return scores.query.new_full(scores.query.shape[:-1], torch.nan)

    return Moments(
        log_normaliser=room(),
        entropy=room(),
        error=room(),
        normaliser_error=room(),
        score_error=room(),
        powers={power: room() for power in wanted.powers},
        mean_key=room() if wanted.mean_key else None,
        key_spread=room() if wanted.key_spread else None,
        largest=room() if wanted.largest else None,
    )


def moments_of_sums(
    scores: Scores, wanted: WantedMoments, sums: dict[str | float, Tensor], length: Tensor
) -> Moments:
    """Moments in nats from sums over the keys of each row, whose scores x are in units of log 2.

    Args:
        scores: what the sums are of.
        wanted: of which everything must be among the sums.
        sums: (batch, heads, rows) each: "top" t = max x, "total" sum 2^(x - t), "mean" sum 2^(x - t) (x - t),
            "square" sum 2^(x - t) |k|^2; a -> sum 2^(a (x - t)); "place" and "away", sums of 2^(x - t) times
            the distance from the row's position and times its square about the mean.
        length: (batch, heads, rows) the queries', in the units of x.
    """
    top, total = sums["top"], sums["total"]
    mean, log_total = sums["mean"] / total, total.log2()
    entropy = (log_total - mean) / BITS
    unit = scores.rounding / BITS
    # What rounding changes in the scores of the keys that matter ...
    products = length * (sums["square"] / total).sqrt()
    capped = 0.0 if scores.softcap is None else scores.softcap * BITS
    # A sum beside one large term loses what is below half a unit of it: of some tens of terms where that
    # term is, and once for every further tile of keys.
    adding = 8 + scores.key.shape[2] / 2048 + log_total.abs() + mean.abs() + capped
    every = unit * (length * scores.longest() + top.abs() + capped)
    size = (top + mean).abs() + products
    if scores.linear:
        # ... moves H by sum p (log p + H) ds. In a row that one key, however long, has to itself that is
        # little: every p changes by a factor of at most exp(2 ds), and with the others' the tail.
        # The clamp changes no minimum, and keeps an entropy of 0 from meeting infinity.
        changed = (2 * every).clamp(max=60.0).expm1()
        tail = 2 * entropy.abs() * changed + scores.key.shape[2] * (2 * every - _UNDERFLOW).exp()
        size = torch.minimum(size, tail / unit)
    size = size + adding
    if scores.bias is not None:
        size = size + top.abs()
    return Moments(
        log_normaliser=(top + log_total) / BITS,
        entropy=entropy,
        error=size * unit,
        normaliser_error=unit * (2 * top.abs() + products + adding),
        score_error=every,
        powers={a: (sums[a].log2() - a * log_total) / BITS for a in wanted.powers},
        mean_key=sums["place"] / total if "place" in sums else None,
        key_spread=(sums["away"] / total).sqrt() if "away" in sums else None,
        largest=top / BITS if wanted.largest else None,
    )


BITS = 1 / math.log(2)
"""Units of log 2 in a nat: the exponential of base 2 takes half the time of the natural one."""

_UNDERFLOW = 126 / BITS
"""Weights below exp of minus this have become 0."""

OUTLYING = 4.0
"""Keys farther from the mean than so many times the median distance do not count for the centre."""

ALIKE = 64
"""Products that round alike and are off by no more than others at random, by ``ROUNDING``."""

ROUNDING = 4 * 1.36
"""Error estimate in units of epsilon times the size of what is subtracted: four times the
largest factor seen over logits of standard deviation 0.01 to 1000, widths 1 to 256, 1 to 4096 keys."""

"""One attention call as it was captured: what its scores are made of, in one layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.attention.visible_keys import additive, hidden_threshold

Route = Literal["registry", "kernel", "fused", "softmax"]

_MASK_CONSTANT = -9_000.0
"""Additive masks of 0 and constants such as -10,000 hide; they are no bias."""

_MASK_VALUES = 4
"""Nothing, what hides the future, what hides padding, and their sum."""

_APART = 5_000.0
"""A mask of -10,000 puts a key farther below the others than scores of a model's own lie apart."""

_VANISHING = 80.0
"""Scores so far below the row's largest leave nothing of a key."""


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One call of attention: what its scores are made of.

    Either ``query`` (batch, heads, queries, size) and ``key`` (batch, key heads, keys, size), with
    all that turns their product into scores, or the scores themselves, ``logits`` (batch, heads,
    queries, keys). ``keep`` is True where a key may be seen and ``bias`` is added to the scores;
    both broadcast to the scores. ``causal``: query i sees the keys 0 to i (queries and keys are then
    equally many). ``sinks`` (heads,) are logits of a column without a key.
    """

    route: Route
    operation: str
    dtype: torch.dtype
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    """(batch, key heads, keys, value size), where the operation shows it."""
    scale: float = 1.0
    causal: bool = False
    keep: Tensor | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    window: int | None = None
    sinks: Tensor | None = None
    logits: Tensor | None = None
    positions: bool = True
    """Whether a query's and a key's index along the scores are token positions."""
    padding: Tensor | None = None
    """(batch, queries), True where the operation itself knows the query to be padding."""
    asking: frozenset[int] = frozenset()
    """The inputs that the queries go back to, by ``joma.instruments.watch.capture.lineage.Lineage``."""
    answering: frozenset[int] = frozenset()
    """Those of the keys."""
    first_head: int = 0
    """The number of the first head, where the others of the sample are in other calls."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, heads, queries, keys."""
        if self.logits is not None:
            batch, heads, queries, keys = self.logits.shape
        else:
            assert self.query is not None
            assert self.key is not None
            batch, heads, queries = self.query.shape[:3]
            keys = self.key.shape[2]
        return batch, heads, queries, keys

    @property
    def among_themselves(self) -> bool:
        """Whether queries and keys are the same tokens: as many, and computed from the same inputs."""
        _, _, queries, keys = self.shape
        common = self.asking & self.answering
        return queries == keys and bool(common) and common in (self.asking, self.answering)

    def tokens_seen(self) -> Tensor | None:
        """(batch, keys), False for tokens that no query of their sample sees; None where all are seen."""
        batch, _, _, keys = self.shape
        if self.logits is not None:
            best = self.logits.amax((1, 2))
            top = best.amax(-1, keepdim=True)
            seen = (best > top - _APART) | ~top.isfinite()  # an overflow says nothing of padding
        elif self.keep is not None and self.keep.ndim == 4 and len(self.keep) == batch:
            seen = self._pairs_kept().any(1).any(1).expand(batch, keys)
        else:  # a mask without samples says nothing of their padding
            return None
        return None if bool(seen.all()) else seen

    def tokens_that_are_padding(self) -> Tensor | None:
        """(batch, tokens), True where queries and keys are the same tokens and none sees this one.

        Not where others do not see themselves either: there the mask hides each token from itself.
        """
        seen = self.tokens_seen()
        if seen is None:
            return None
        if self.logits is not None:
            own = self.logits.diagonal(dim1=2, dim2=3).amax(1)
            themselves = own > self.logits.amax((1, 2, 3))[:, None] - _APART
        else:
            themselves = self._pairs_kept().diagonal(dim1=2, dim2=3).any(1)
        return None if bool((seen & ~themselves).any()) else ~seen

    def tokens_alone(self) -> Tensor | None:
        """(batch, tokens), True for a token that no other sees and that sees no other; None: not known."""
        batch, _, queries, keys = self.shape
        if self.logits is not None:
            pairs = self.logits > self.logits.amax(-1, keepdim=True) - _VANISHING
        elif self.keep is not None and self.keep.ndim == 4 and len(self.keep) == batch:
            pairs = self._pairs_kept()
        else:
            return None
        others = pairs.any(1).expand(batch, queries, keys).clone()
        others.diagonal(dim1=1, dim2=2).fill_(False)
        return ~(others.any(1) | others.any(2))

    def _pairs_kept(self) -> Tensor:
        """(batch, heads or 1, queries, keys), what the mask leaves."""
        assert self.keep is not None
        _, _, queries, keys = self.shape
        pairs = self.keep.expand(-1, -1, queries, keys)
        return pairs & torch.ones_like(pairs[0, 0]).tril() if self.causal else pairs

    def heads_second(self) -> AttentionCall:
        """A call of queries and keys whose heads stand before the batch, in the order of all calls."""
        turned: dict[str, Any] = {
            name: tensor.transpose(0, 1)
            for name in ("query", "key", "value", "keep", "bias")
            if isinstance(tensor := getattr(self, name), Tensor) and tensor.ndim == 4
        }
        return replace(self, **turned)

    def keys_seen(self, asks: Tensor) -> Tensor:
        """(batch, keys): which keys some query of those that ask, (batch, queries), sees."""
        batch, _, queries, keys = self.shape
        pairs = asks.expand(batch, -1)[:, None, :, None].expand(-1, 1, queries, keys)
        if self.causal:
            pairs = pairs & torch.ones(queries, keys, dtype=torch.bool, device=pairs.device).tril()
        if self.keep is not None:
            pairs = pairs & self.keep
        if self.logits is not None:
            pairs = pairs & (self.logits > self.logits.amax(-1, keepdim=True) - _VANISHING)
        elif self.bias is not None:
            pairs = pairs & (self.bias > self.bias.amax(-1, keepdim=True) - _VANISHING)
        return pairs.any(dim=2).any(dim=1)

    def hides(self, asks: Tensor, answers: Tensor) -> bool:
        """Whether the queries (batch, queries) that ask see no key (batch, keys) that does not answer."""
        return not bool((self.keys_seen(asks) & ~answers).any())


def scaled_dot_product_call(
    route: Route,
    operation: str,
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    **further: Any,
) -> AttentionCall:
    """The call that ``F.scaled_dot_product_attention`` makes of these arguments.

    ``mask`` as it comes: bool (True = keep) or added to the scores. ``causal`` is aligned at the
    first query and the first key, whatever their numbers, as PyTorch defines it.
    """
    query, key = four_dimensional(query), four_dimensional(key)
    keep, bias = split_mask(mask)
    if causal:
        queries, keys = query.shape[2], key.shape[2]
        if keys > queries:  # no query sees the keys beyond the last query
            key = key[:, :, :queries]
            keep, bias = (None if m is None or m.shape[-1] == 1 else m[..., :queries] for m in (keep, bias))
        elif keys < queries:
            triangle = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
            keep = triangle if keep is None else keep & triangle
            causal = False
    return AttentionCall(
        route=route,
        operation=operation,
        dtype=query.dtype,
        query=query.detach(),
        key=key.detach(),
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        causal=causal,
        keep=keep,
        bias=bias,
        **further,
    )


def with_value(call: AttentionCall, value: Tensor | None) -> AttentionCall:
    """The call with the values of its keys, where their layout is that of the keys."""
    if value is None or call.key is None or value.is_nested:
        return call
    value = four_dimensional(value.detach())[:, :, : call.key.shape[2]]
    return replace(call, value=value) if value.shape[:-1] == call.key.shape[:-1] else call


def four_dimensional(tensor: Tensor) -> Tensor:
    """(batch..., heads, tokens, size) with one batch dimension, whatever their number was."""
    if tensor.ndim < 4:
        return tensor.reshape(*(1,) * (4 - tensor.ndim), *tensor.shape)
    return tensor if tensor.ndim == 4 else tensor.flatten(0, tensor.ndim - 4)


def split_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as models write it -> (keep, bias): which keys may be seen, and what is added.

    Bool masks are True where a key may be seen. Additive masks hide with -inf, with the smallest
    number of their dtype (which would swamp every score if it were taken for a bias), or with a
    constant such as -10,000 beside zeros. What remains, if it is not all zero, is the bias.
    """
    if mask is None:
        return None, None
    mask = mask.detach()
    mask = mask if mask.ndim <= 4 else mask.flatten(0, mask.ndim - 4)
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.dtype.is_floating_point:
        raise InputError(f"an attention mask of dtype {mask.dtype} is neither bool nor floating point.")
    low = mask <= _MASK_CONSTANT
    if bool(((mask == 0) | low).all()) and (not bool(low.any()) or _only_hides(mask)):
        own = low.all(-1, keepdim=True) & (mask.amax(-1, keepdim=True) > hidden_threshold(mask.dtype))
        if bool(own.any()):  # rows of one number, which leaves the scores as they are
            return ~low | own, mask.masked_fill(~own, 0.0)
        return (~low if bool(low.any()) else None), None
    keep, bias = additive(mask)
    return (None if bool(keep.all()) else keep), bias


def _only_hides(mask: Tensor) -> bool:
    """Whether a mask of zeros and large negative numbers says nothing else: few numbers, and their sums."""
    values = torch.unique(mask)
    return len(values) <= _MASK_VALUES and (len(values) == 1 or bool((values == 0).any()))

"""Which keys each query row sees: an interval per row where that suffices, a mask where it does not.

Causal attention, sliding windows, padding on either side and packed documents all show a row a
contiguous range of keys. Said as two numbers per row, they are cheap to cut, to count and to hand to a
kernel as slices, whatever form they came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows = NDArray[np.int64]

MASKED_BELOW = -3e4
"""Additive values so far below 0 and below their row's largest hide a key. Everything that code adds to mask
a key in float16 and wider (finfo.min, -1e9, -inf) does; -1e4 does not, and counts as the bias that it is."""

_SHORTEST_RUN = 64
_ROWS_AT_ONCE = 128


@dataclass(frozen=True)
class VisibleKeys:
    """Row i of sample b sees the keys j with first[b, i] <= j < stop[b, i] that ``mask``, if any, keeps."""

    first: Tensor
    """(batch or 1, rows), int64."""
    stop: Tensor
    """(batch or 1, rows), int64; equal to ``first`` in a row that sees nothing."""
    begin: Tensor
    """(batch or 1,): the first key that any row of the sample sees, among all its rows, chosen or not."""
    end: Tensor
    """(batch or 1,): the end of the last key that any row of the sample sees."""
    mask: Tensor | None = None
    """(batch or 1, heads or 1, rows, keys) bool, where some row's keys are no interval; then the
    interval is the smallest that holds the keys of all heads."""

    @property
    def counts(self) -> Tensor:
        """Number of keys seen: (batch or 1, heads or 1, rows)."""
        if self.mask is None:
            return (self.stop - self.first)[:, None]
        return self.mask.sum(-1)

    def sees(self, keys: Tensor) -> Tensor:
        """Whether each row sees the key named for it; ``keys`` (batch or 1, rows) -> (b, h or 1, rows)."""
        inside = ((keys >= self.first) & (keys < self.stop))[:, None]
        if self.mask is None:
            return inside
        batch = max(len(keys), len(self.mask))
        index = keys.clamp(0, self.mask.shape[-1] - 1)[:, None, :, None]
        mask = self.mask.expand(batch, -1, -1, -1)
        return inside & mask.gather(-1, index.expand(batch, mask.shape[1], -1, 1)).squeeze(-1)

    def take(self, sample: slice, heads: slice, rows: Tensor | slice) -> VisibleKeys:
        """The same for a selection of samples, heads and rows."""
        intervals = sample if len(self.first) > 1 else slice(None)
        mask = None if self.mask is None else take(self.mask, sample, heads, rows)
        return VisibleKeys(
            self.first[intervals][:, rows],
            self.stop[intervals][:, rows],
            self.begin[intervals],
            self.end[intervals],
            mask,
        )


def take(array: Tensor, sample: slice, heads: slice, rows: Tensor | slice) -> Tensor:
    """Select from (batch or 1, heads or 1, rows or 1, ...) without touching dimensions of size 1."""
    array = array[sample] if array.shape[0] > 1 else array
    array = array[:, heads] if array.shape[1] > 1 else array
    return array[:, :, rows] if array.shape[2] > 1 else array


def visible_keys(
    positions: Tensor, keys: int, *, causal: bool, window: tuple[int, int] | None, mask: Tensor | None
) -> VisibleKeys:
    """Put causality, window and boolean mask together.

    Args:
        positions: (rows,) where each query stands among the keys.
        keys: their number.
        causal: a query sees no key behind its own position.
        window: how many keys a query sees before and after itself.
        mask: (batch or 1, heads or 1, rows or 1, keys or 1) bool, True where the key is seen.
    """
    first = torch.zeros_like(positions)
    stop = torch.full_like(positions, keys)
    if causal:
        stop = torch.minimum(stop, positions + 1)
    if window is not None:
        first = torch.maximum(first, positions - window[0])
        stop = torch.minimum(stop, positions + window[1] + 1)
    first, stop = first.clamp(0, keys)[None], stop.clamp(0, keys)[None]
    stop = torch.maximum(first, stop)
    if mask is None:
        return VisibleKeys(first, stop, *_used_keys(first, stop))
    mask = mask.expand(-1, -1, len(positions), keys)
    if mask.shape[1] > 1 and bool((mask == mask[:, :1]).all()):
        mask = mask[:, :1]
    index = torch.arange(keys, device=mask.device)
    mask = mask & ((index >= first[..., None]) & (index < stop[..., None]))[:, None]
    anywhere = mask.any(1) if mask.shape[1] > 1 else mask[:, 0]
    some = anywhere.any(-1)
    bits = anywhere.view(torch.uint8)
    first = torch.where(some, bits.argmax(-1), 0)
    stop = torch.where(some, keys - bits.flip(-1).argmax(-1), 0)
    contiguous = mask.shape[1] == 1 and bool((anywhere.sum(-1) == stop - first).all())
    return VisibleKeys(first, stop, *_used_keys(first, stop), None if contiguous else mask)


def _used_keys(first: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
    empty = first >= stop
    end = stop.masked_fill(empty, 0).amax(-1)
    return torch.minimum(first.masked_fill(empty, torch.iinfo(torch.int64).max).amin(-1), end), end


def hidden_scores(values: Tensor) -> Tensor:
    """Where scores or what is added to them say that a key is hidden, (..., keys) bool.

    -inf and the least numbers of the dtype hide, and so does what lies ``MASKED_BELOW`` both below 0 and
    below the row's largest. A whole row is hidden where it is so low that the dtype holds no differences of
    scores there (``swamped``); above that it has low scores of its own.
    """
    top = values.amax(-1, keepdim=True)
    far = (values <= MASKED_BELOW) & (values <= top + MASKED_BELOW)
    return far | (values <= 0.99 * torch.finfo(values.dtype).min) | (top <= hidden_threshold(values.dtype))


def hidden_threshold(dtype: torch.dtype) -> float:
    """A number so far below 0 that its neighbours in the dtype are 8 away; scores added to it are lost."""
    return min(MASKED_BELOW, -8 / torch.finfo(dtype).eps)


def additive(values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split a float mask or bias into what it keeps (bool) and what it adds (None where all zeros)."""
    hidden = hidden_scores(values)
    rest = values.masked_fill(hidden, 0.0)
    return ~hidden, rest if bool(rest.any()) else None


@dataclass(frozen=True)
class Piece:
    """Rows of one sample that one kernel call can serve."""

    rows: slice
    keys: slice
    """Keys of the call; with ``kind == "causal"`` the rows see these up to their own."""
    kind: Literal["full", "causal", "masked"]
    before: slice | None = None
    """Keys before ``keys`` that every row of a causal piece sees."""


def pieces(first: Tensor, stop: Tensor, *, masked: bool = False) -> Iterator[Piece]:
    """Cut the rows of one sample into calls: long runs without a mask, the rest in masked blocks.

    Args:
        first: (rows,) and
        stop: (rows,) the intervals; rows that see nothing are in no piece.
        masked: intervals do not say all, so that every piece needs a mask.
    """
    begins, ends = first.cpu().numpy(), stop.cpu().numpy()
    size = len(begins)
    moves = np.stack([np.diff(begins), np.diff(ends)])
    changes = np.append(np.flatnonzero((moves[:, 1:] != moves[:, :-1]).any(0)) + 1, size - 1)
    at = pending = 0
    while not masked and at < size:
        last = int(changes[np.searchsorted(changes, at, side="right")]) if at < size - 1 else at
        piece = _run(begins, ends, at, last + 1)
        if piece is None:
            at = max(last, at + 1)
            continue
        yield from _masked_pieces(begins, ends, pending, at)
        yield piece
        at = pending = last + 1
    yield from _masked_pieces(begins, ends, pending, size)


def _run(begins: Rows, ends: Rows, at: int, end: int) -> Piece | None:
    if end - at < min(_SHORTEST_RUN, len(begins)) or begins[at] >= ends[at] or begins[end - 1] != begins[at]:
        return None
    low, high = int(begins[at]), int(ends[at])
    rise = int(ends[end - 1]) - high
    if rise == 0:
        return Piece(slice(at, end), slice(low, high), "full")
    if rise != end - 1 - at:
        return None
    before = slice(low, high - 1) if high - 1 > low else None
    return Piece(slice(at, end), slice(high - 1, high + rise), "causal", before)


def _masked_pieces(begins: Rows, ends: Rows, start: int, stop: int) -> Iterator[Piece]:
    """Blocks of rows that all see something, with the keys that any of them sees."""
    seeing = np.flatnonzero(begins[start:stop] < ends[start:stop]) + start
    for group in np.split(seeing, 1 + np.flatnonzero(np.diff(seeing) > 1)):
        for at in range(0, len(group), _ROWS_AT_ONCE):
            rows = slice(int(group[at]), int(group[min(at + _ROWS_AT_ONCE, len(group)) - 1]) + 1)
            keys = slice(int(begins[rows].min()), int(ends[rows].max()))
            yield Piece(rows, keys, "masked")

"""Which axes of a softmax's scores are queries, heads and batch: from the product they enter, and the run.

An axis of scores may hold several: batch and heads as one, heads and queries as one, all rows in one. It is
cut where the product's factor has dimensions of its own, and where a feature axis was cut into heads
(``joma.instruments.watch.capture.lineage``). Queries are what makes the product's own rows; heads are parts
of the feature axis whose rest the product of queries and keys summed over; the others are the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from joma.core.errors import InputError
from joma.instruments.watch.capture.lineage import Origin, Product, parts_of
from joma.instruments.watch.capture.memory import Ranges
from joma.instruments.watch.owners import Place

Strides = tuple[int, ...]


class ScoreAxes(Protocol):
    """What is known of a softmax."""

    operation: str
    channels: tuple[bool, ...]
    features: Ranges
    origin: Origin
    place: Place


class Scores(Protocol):
    """Softmaxes that enter a product as one tensor."""

    @property
    def members(self) -> Sequence[ScoreAxes]:
        """One by one."""

    @property
    def dim(self) -> int:
        """The keys' axis."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of their axes, together."""

    @property
    def strides(self) -> Strides | None:
        """Of the axes in the product's factor; None where that is not known."""

    @property
    def at(self) -> int | None:
        """The axis along which they are stacked."""

    def memory_of_scores(self) -> tuple[Strides, int]:
        """The strides of the axes where the scores were computed, and the offset there."""


@dataclass(frozen=True)
class Part:
    """A part of an axis of the scores, or all of it."""

    axis: int
    at: int
    """Its place among all parts, in the order of the scores' axes."""
    size: int
    dim: int | None
    """The dimension of the product's factor that it is; None where that is not known, and of size 1."""
    own: bool
    """Whether it makes the product's own rows."""
    feature: bool
    """Whether it is part of a feature axis."""
    whole: bool
    """Whether it is its axis."""


@dataclass(frozen=True)
class Axes:
    """The axes of scores but the keys', in parts."""

    parts: list[Part]
    key: int
    """The place of the keys' axis among all parts."""
    rows: int
    """How many dimensions the scores have."""
    known: bool
    """Whether the axes' dimensions in the product are known."""
    flat: bool
    """Whether the product's rows hold the batch as well."""
    stacked: int | None
    """The axis along which slices were put together."""
    ragged: bool
    """Whether an axis ends in the midst of a sample's heads."""
    features: Ranges
    offset: int

    @classmethod
    def of(cls, scores: Scores, product: Product, which: int) -> Axes:
        """Of scores that enter a product as one factor."""
        factor, letters, rest = product.factors[which], product.letters[which], product.letters[1 - which]
        features = scores.members[0].features
        memory, offset = scores.memory_of_scores()
        parts: list[Part] = []
        place = key = 0
        ragged = False
        for axis, size in enumerate(scores.sizes):
            if axis == scores.dim:
                key = place
                place += 1
                continue
            held = parts_of(memory[axis], size, features) if size > 1 else []
            ragged |= any(
                memory[axis] <= low < high < size * memory[axis] and size * memory[axis] % high
                for low, high in features
            )
            stride = None if scores.strides is None else scores.strides[axis]
            cuts = {1, size, *(cut for part in held for cut in part)}
            if stride:
                cuts |= {
                    factor.stride(d) // stride
                    for d in range(factor.ndim)
                    if factor.shape[d] > 1 and factor.stride(d) % stride == 0
                    and stride < factor.stride(d) < stride * size
                }  # fmt: skip
            bounds = [1]
            for cut in sorted(cuts):
                if cut > bounds[-1] and cut % bounds[-1] == 0 and size % cut == 0:
                    bounds.append(cut)
            if size == 1:
                bounds = [1, 1]
            for inner, outer in reversed(list(pairwise(bounds))):
                dim = covering_dimension(factor, stride * inner) if stride and size > 1 else None
                parts.append(
                    Part(
                        axis,
                        place,
                        outer // inner,
                        dim,
                        dim is not None and letters[dim] not in rest,
                        any(low <= inner and outer <= high for low, high in held),
                        len(bounds) == 2,
                    )
                )
                place += 1
        shared = any(letter in rest and letter in product.out for letter in letters)
        known = scores.strides is not None
        return cls(parts, key, len(scores.sizes), known, not shared, scores.at, ragged, features, offset)

    def split(self, dim: int, keys: int) -> list[list[int]]:
        """The sizes of the parts, axis by axis."""
        return [
            [keys] if axis == dim else [part.size for part in self.parts if part.axis == axis]
            for axis in range(self.rows)
        ]

    def split_axes(self, scored: ScoreAxes, keys: int) -> tuple[list[Part], list[Part], int]:
        """Batch and heads, the queries, and the number of heads.

        Raises:
            InputError: they cannot be told apart.
        """
        if self.ragged:
            raise InputError(
                "a slice of the scores ends in the midst of a sample's heads, so which head is whose cannot "
                "be kept; cut batch and heads evenly."
            )
        asking = self._queries(scored, keys)
        others = [part for part in self.parts if part not in asking]
        heads = [part for part in others if part.feature]
        if not heads and len(others) == 1:
            queries = math.prod(part.size for part in asking)
            return others, asking, scored.place.split(others[0].size, queries, keys)
        if not heads and others:
            heads = others[-1:]
            groups = [part for part in others if part.own] or self._groups(scored, others, keys)
            if groups:  # query heads that share their keys, beside the heads of the keys
                rest = [part for part in others[1:] if part not in groups]
                heads = [part for part in others if part in groups or part in rest[-1:]]
            elif sum(part.size > 1 for part in others) > 1 and len(others) > 2:
                raise InputError(
                    f"the scores have {len(others)} axes {[part.size for part in others]} beside queries and "
                    "keys, and neither shapes nor the run tell which of them are heads; pass the module that "
                    "projects queries and keys, not projected ones."
                )
        batch = [part for part in others if part not in heads]
        return [*batch, *heads], asking, math.prod(part.size for part in heads)

    def _groups(self, scored: ScoreAxes, others: list[Part], keys: int) -> list[Part]:
        """The axis that the keys, as a running module was given them, lack."""
        for part in others[1:]:
            lead = tuple(one.size for one in others if one is not part)
            if scored.place.has_shape((*lead, keys)):
                return [part]
        return []

    def _queries(self, scored: ScoreAxes, keys: int) -> list[Part]:
        """The parts of the queries: what makes the product's own rows, and is no part of the features."""
        if not self.known:
            return self._queries_by_size(scored, keys)
        own = [part for part in self.parts if part.own]
        if self.flat:
            own = own[-1:] if not any(part.feature for part in own) else own
        heads = [part for part in own if part.feature]
        queries = [part for part in own if not part.feature]
        single = [part for part in self.parts if part.size == 1]
        if not queries and heads:  # of one token, or of parameters, or of an input with its tokens last
            sure = scored.origin.pair and all(not p.whole or scored.channels[p.axis] for p in heads)
            return single[-1:] if sure and single and single[-1].at == self.key - 1 else heads
        rows: list[list[Part]] = []
        for part in queries:  # slices of one axis, laid one after the other, are that axis
            sliced = rows and part.dim == rows[-1][-1].dim and self.stacked in (part.axis, rows[-1][-1].axis)
            if sliced or (rows and part.axis == rows[-1][-1].axis and not self.flat):
                rows[-1].append(part)
            else:
                rows.append([part])
        if self.flat or len(rows) < 2:
            return (rows or [single[-1:]])[-1]
        alike = [row for row in rows if math.prod(part.size for part in row) == keys]
        if len(alike) == 1:
            return alike[0]
        if self.key == queries[-1].at + 1 and queries[-1].at == queries[0].at + len(queries) - 1:
            return rows[-1]
        raise InputError(
            f"the scores have the axes {[part.size for part in queries]}, each of which may be the queries "
            f"beside {keys} keys; pass the module that projects queries and keys, not projected ones."
        )

    def _queries_by_size(self, scored: ScoreAxes, keys: int) -> list[Part]:
        """Where only the sizes are left: the axis as long as the tokens, the last where several are."""
        parts = [part for part in self.parts if not part.feature] or self.parts
        if len(parts) > 1:
            tokens = [part for part in parts[1:] if scored.place.has_tokens(part.size)]
            if len(tokens) == 1:
                return tokens
        return parts[-1:]

    def first_head(self, count: int) -> int:
        """The number of the first head in a slice of more heads.

        Raises:
            InputError: the slice holds a part of the heads of one sample and some of another.
        """
        for low, high in self.features:
            start = self.offset % high // low
            if start:
                if start + count > high // low:
                    raise InputError(
                        f"a softmax of {count} of {high // low} heads begins at head {start} of a sample and "
                        "ends in the next; which head is whose cannot be kept. Cut the heads evenly."
                    )
                return start
        return 0


def covering_dimension(tensor: Tensor, stride: int) -> int | None:
    """The dimension of a tensor that an axis of this stride in its memory is, or is a part of."""
    best = None
    for dim in range(tensor.ndim):
        own = tensor.stride(dim)
        if (
            tensor.shape[dim] > 1
            and own
            and own <= stride < own * tensor.shape[dim]
            and stride % own == 0
            and (best is None or own > tensor.stride(best))
        ):
            best = dim
    return best

"""From a softmax to an attention: where its probabilities go says what it was, and how it is laid out.

A softmax is an attention when its probabilities enter a matrix product that sums over the softmax's axis,
the keys. The axis of the product's rows are the queries, whichever place it has among the scores' axes.
Probabilities are followed through casts, dropout, copies and concatenations: slices (of a loop over heads
or samples) that enter one product together are put together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import SymInt, Tensor

from joma.core.errors import InputError
from joma.instruments.watch.call import AttentionCall
from joma.instruments.watch.capture.axes import Axes, Strides, covering_dimension
from joma.instruments.watch.capture.lineage import (
    Argument,
    Lineage,
    Origin,
    Product,
    is_channel,
    tensors,
)
from joma.instruments.watch.capture.memory import Memory, Ranges, same_storage, storage_of
from joma.instruments.watch.owners import Place
from joma.measures.attention.visible_keys import hidden_scores


@dataclass
class _Carrier:
    """A piece of memory that holds a softmax's probabilities, whole or rescaled."""

    memory: Memory
    strides: Strides | None
    """Of the scores' axes in it; None where that was lost on the way."""
    offset: int


@dataclass(eq=False)
class Candidate:
    """A softmax that waits to see where its probabilities go."""

    operation: str
    scores: Tensor
    dim: int
    channels: tuple[bool, ...]
    """Which axes of the scores are channels."""
    features: Ranges
    """Ranges of the strides of what the scores were computed in; heads are parts of them."""
    layout: tuple[Strides, int]
    """The scores' strides and offset there."""
    origin: Origin
    place: Place
    own: bool = False
    """Whether the scores are a copy."""
    why_not: str = "its probabilities enter no matrix product"
    carriers: dict[int, _Carrier] = field(default_factory=dict)

    def alive(self) -> bool:
        """Whether its probabilities are still there."""
        return any(not carrier.memory.gone() for carrier in self.carriers.values())


@dataclass(frozen=True)
class Report:
    """What is told of a candidate."""

    attention: Callable[[AttentionCall, Place], Callable[[str], None] | None]
    """A call of attention; returns how it is taken back, with the reason."""
    excluded: Callable[[str, str, Place], None]
    """A softmax that is no attention: its operation, the reason, where it ran."""
    opaque: Callable[[str, str], None]


class Candidates:
    """The softmaxes of a pass that wait."""

    def __init__(self, lineage: Lineage, report: Report) -> None:
        self.lineage, self.report = lineage, report
        self.waiting: dict[Candidate, None] = {}
        self._by_memory: dict[int, dict[Candidate, None]] = {}
        self._taken_back: dict[Candidate, Callable[[str], None]] = {}

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(
        self, operation: str, given: Tensor, copy: Tensor | None, dim: int, made: Tensor, place: Place
    ) -> None:
        """A softmax over a dimension has been computed; ``copy`` of the scores, where it overwrote them."""
        for candidate in [one for one in self.waiting if not one.alive()]:
            self._give_up(candidate)
        origin = self.lineage.of(given)
        channels = tuple(is_channel(given, axis, origin) for axis in range(given.ndim))
        scores = given.detach() if copy is None else copy
        candidate = Candidate(
            operation,
            scores,
            dim % given.ndim,
            channels,
            origin.features,
            (given.stride(), int(given.storage_offset())),
            origin,
            place,
            own=copy is not None,
        )
        self.waiting[candidate] = None
        self._carry(candidate, made, made.stride(), made.storage_offset())

    def flush(self) -> None:
        """The pass is over: what still waits has entered no product."""
        for candidate in list(self.waiting):
            self._give_up(candidate)
        self._taken_back.clear()

    def before_writing(self, written: Tensor) -> None:
        """Scores that are about to be overwritten are copied first."""
        for candidate in self.waiting:
            if not candidate.own and same_storage(candidate.scores, written):
                candidate.scores, candidate.own = candidate.scores.clone(), True

    def follow(self, name: str, args: Sequence[Argument], result: Argument, product: Product | None) -> None:
        """An operation has run: probabilities may have been carried on, or have entered a product."""
        if product is not None:
            made = next(tensors((result,)), None)
            for which, factor in enumerate(product.factors):
                group = self._by_memory.get(storage_of(factor))
                if group and made is not None:
                    self._enter(product, which, list(group), made)
            return
        if name in ("aten::cat", "aten::stack") and isinstance(args[0], list | tuple):
            self._join(name, list(tensors(args[0])), args[1] if len(args) > 1 else 0, result)
            return
        for operand in tensors(args):
            group = self._by_memory.get(storage_of(operand))
            if not group:
                continue
            for made in tensors((result,)):
                if made.is_floating_point() and not same_storage(made, operand):
                    for candidate in list(group):
                        strides = carry_strides(
                            candidate.carriers[storage_of(operand)].strides, operand, made
                        )
                        if strides is not None or made.numel() == operand.numel() or "pad" in name:
                            self._carry(candidate, made, strides, made.storage_offset())

    def _join(self, name: str, operands: list[Tensor], dim: Argument, result: Argument) -> None:
        made = next(tensors((result,)), None)
        if made is None or not isinstance(dim, int):
            return
        dim, at = dim % made.ndim, int(made.storage_offset())
        for operand in operands:  # of one dimension and empty, one may be joined to any
            part = operand.unsqueeze(dim) if name == "aten::stack" else operand
            for candidate in list(self._by_memory.get(storage_of(operand), ())):
                strides = carry_strides(
                    candidate.carriers[storage_of(operand)].strides, part, made, along=dim
                )
                self._carry(candidate, made, strides, at)
            at += made.stride(dim) * (part.shape[dim] if part.ndim == made.ndim else 0)

    def _carry(
        self, candidate: Candidate, made: Tensor, strides: Strides | None, offset: int | SymInt
    ) -> None:
        memory = storage_of(made)
        candidate.carriers[memory] = _Carrier(Memory(made), strides, int(offset))
        self._by_memory.setdefault(memory, {})[candidate] = None

    def _drop(self, candidate: Candidate) -> None:
        self.waiting.pop(candidate, None)
        for memory in candidate.carriers:
            group = self._by_memory.get(memory, {})
            group.pop(candidate, None)
            if not group:
                self._by_memory.pop(memory, None)

    def _give_up(self, candidate: Candidate) -> None:
        self._drop(candidate)
        if candidate.channels[candidate.dim]:
            candidate.why_not = _CHANNELS
        self.report.excluded(candidate.operation, candidate.why_not, candidate.place)

    def _enter(self, product: Product, which: int, group: list[Candidate], made: Tensor) -> None:
        factor, other = product.factors[which], product.factors[1 - which]
        letters = product.letters[which]
        value = self.lineage.of(other)
        for one in _put_together(group, storage_of(factor)):
            first = one.members[0]
            dims = one.dims_in(factor)
            if dims is not None:
                key = dims[one.dim]
                if key is None:  # a single key
                    summed = any(x not in product.out and factor.shape[d] == 1 for d, x in enumerate(letters))
                else:
                    summed = letters[key] not in product.out
                if not summed:
                    for candidate in one.members:
                        candidate.why_not = (
                            "a product keeps the axis of its probabilities, and sums over another"
                        )
                    if key is not None:
                        self.lineage.mark(made, product.out.index(letters[key]))
                    continue
            if value.weights:
                for candidate in one.members:
                    candidate.why_not = "its probabilities weigh the rows of a parameter"
                continue
            reason = self._why_not(first, product, 1 - which, value)
            for candidate in one.members:
                self._drop(candidate)
            if reason:
                if isinstance(value.mixed, Candidate) and value.mixed in self._taken_back:
                    self._taken_back.pop(value.mixed)(reason)
                self.report.excluded(first.operation, reason, first.place)
                continue
            self._commit(one, dims, product, which)
            self.lineage.mix(made, first)

    def _why_not(self, candidate: Candidate, product: Product, other: int, value: Origin) -> str:
        """Why probabilities that sum over their own axis are no attention; "" if they are."""
        if candidate.channels[candidate.dim]:
            return _CHANNELS
        if candidate.origin.pair:
            return ""
        factor, letters = product.factors[other], product.letters[other]
        keys = [d for d, letter in enumerate(letters) if letter not in product.out]
        if value.mixed is not None or any(is_channel(factor, d, value) for d in keys):
            return _CHANNELS
        return ""

    def _commit(self, one: SoftmaxGroup, dims: list[int | None] | None, product: Product, which: int) -> None:
        first = one.members[0]
        try:
            call = one.call(dims, product, which)
            taken_back = self.report.attention(call, first.place)
        except InputError as error:
            self.report.opaque(first.operation, str(error))
            return
        if taken_back is not None:
            self._taken_back[first] = taken_back


_CHANNELS = "a softmax over channels (features, experts, slots or codes), not over tokens"


def carry_strides(
    strides: Strides | None, operand: Tensor, made: Tensor, along: int | None = None
) -> Strides | None:
    """The strides, in what an operation made, of axes that have these strides in its operand.

    None where the result's axes are not the operand's, one by one; ``along``: a dimension that may be longer.
    """
    shift = made.ndim - operand.ndim
    if strides is None or shift < 0:
        return None
    found = []
    for stride in strides:
        dim = covering_dimension(operand, stride)
        if dim is None:
            found.append(0)
            continue
        if made.shape[dim + shift] != operand.shape[dim] and dim != along:
            return None
        found.append(made.stride(dim + shift) * (stride // operand.stride(dim)))
    return tuple(found)


@dataclass(frozen=True)
class SoftmaxGroup:
    """Softmaxes whose probabilities enter a product as one tensor."""

    members: list[Candidate]
    dim: int
    sizes: tuple[int, ...]
    strides: Strides | None
    """Axes of size 1 have none: 0."""
    at: int | None = None
    """The axis along which the members are stacked."""

    def dims_in(self, factor: Tensor) -> list[int | None] | None:
        """Each axis's dimension in a factor of a product; None where that is not known."""
        if self.strides is None:
            return None
        return [
            None if size == 1 else covering_dimension(factor, s)
            for s, size in zip(self.strides, self.sizes, strict=True)
        ]

    def scores(self) -> Tensor:
        """Of all members, in one tensor."""
        if self.at is None:
            return self.members[0].scores
        return torch.stack([member.scores for member in self.members], self.at)

    def call(self, dims: list[int | None] | None, product: Product, which: int) -> AttentionCall:
        """The call, in the layout (batch, heads, queries, keys).

        Raises:
            InputError: the axes of queries and heads cannot be told apart, or heads of two samples are in one
                slice.
        """
        first, keys = self.members[0], self.sizes[self.dim]
        axes = Axes.of(self, product, which)
        others, asking, heads = axes.split_axes(first, keys)
        scores = self.scores()
        scores = scores.reshape([size for part in axes.split(self.dim, keys) for size in part])
        order = [*(part.at for part in others), *(part.at for part in asking), axes.key]
        queries = math.prod(part.size for part in asking)
        scores = scores.permute(order).reshape(-1, heads, queries, keys)
        hidden = hidden_scores(scores)
        if bool(hidden.any()):
            scores = scores.masked_fill(hidden, float("-inf"))
        key = None if dims is None else dims[self.dim]
        learned = self.at is None and any(first.channels[part.axis] for part in asking)
        return AttentionCall(
            route="softmax",
            operation=first.operation,
            dtype=scores.dtype,
            logits=scores,
            positions=dims is not None and keys == (1 if key is None else product.factors[which].shape[key]),
            asking=frozenset() if learned else first.origin.sources,
            answering=first.origin.columns,
            first_head=axes.first_head(heads),
        )

    def memory_of_scores(self) -> tuple[Strides, int]:
        """The strides of the axes where the scores were computed, and the offset there."""
        strides, offset = self.members[0].layout
        if self.at is None:
            return strides, offset
        offsets = [member.layout[1] for member in self.members]
        steps = {later - one for one, later in pairwise(offsets)}
        together = len({storage_of(member.scores) for member in self.members if not member.own}) == 1
        owned = all(member.own for member in self.members)
        step = steps.pop() if len(steps) == 1 and (together or owned) else 0
        return (*strides[: self.at], step, *strides[self.at :]), offset


def _put_together(group: list[Candidate], memory: int) -> list[SoftmaxGroup]:
    """The candidates of a factor as one, where they are slices of one size; else each for itself."""
    if len(group) > 1:
        group = sorted(group, key=lambda one: one.carriers[memory].offset)
        carriers = [one.carriers[memory] for one in group]
        strides = carriers[0].strides
        steps = {later.offset - one.offset for one, later in pairwise(carriers)}
        alike = {(one.scores.shape, one.dim, one.carriers[memory].strides) for one in group}
        if len(steps) == len(alike) == 1 and strides is not None and (step := steps.pop()) > 0:
            sizes = tuple(group[0].scores.shape)
            smaller = [a for a, size in enumerate(sizes) if size > 1 and strides[a] < step]
            at = smaller[0] if smaller else len(sizes)
            return [
                SoftmaxGroup(
                    group,
                    group[0].dim + (at <= group[0].dim),
                    (*sizes[:at], len(group), *sizes[at:]),
                    (*strides[:at], step, *strides[at:]),
                    at,
                )
            ]
    return [
        SoftmaxGroup([one], one.dim, tuple(one.scores.shape), one.carriers[memory].strides) for one in group
    ]

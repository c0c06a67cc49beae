"""Where tensors come from, as far as it decides what a softmax and a mask are about.

Of every tensor that the dispatch mode sees made, three things are kept: which inputs its positions go back
to (queries and keys with a common one are the same tokens), whether parameters alone made it, and
which of its axes are channels, that is rows of a weight matrix. A softmax over channels (features, experts,
slots, codes) is no attention. An axis of scores that is a part of a feature axis holds heads, also where it
is merged with the batch: an axis keeps its range of strides through views, copies and products.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from joma.instruments.watch.call import AttentionCall
from joma.instruments.watch.capture.memory import Range, Ranges, Start, is_slice, same_storage, storage_of


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What is known of a tensor. ``channels`` are ranges of strides: views keep them."""

    sources: frozenset[int] = frozenset()
    """The inputs that its positions (its rows, where a product made it) go back to; none: parameters."""
    columns: frozenset[int] = frozenset()
    """Those of the second factor of the last product of two activations."""
    pair: bool = False
    """Whether its last product was of two activations."""
    weights: bool = False
    """Whether parameters and constants alone made it."""
    channels: Ranges = ()
    widths: Ranges = ()
    """Feature axes that no parameter made: the last axis of an input (samples, tokens, features), or
    (samples, rows, columns, features)."""
    mixed: Hashable = None
    """The softmax whose probabilities were the first factor of the last product."""
    start: Start | None = None
    """Where the slice of features lay that this was copied or computed from; None: of no slice."""

    @property
    def features(self) -> Ranges:
        """Channels and widths: what heads are parts of. Of scores, none but those of their two factors."""
        return (*self.channels, *self.widths) if self.pair else self.channels


PARAMETERS = Origin(weights=True)
Argument: TypeAlias = (
    "Tensor | Sequence[Argument] | str | int | float | torch.dtype | torch.device | torch.layout | None"
)
"""What PyTorch's operations take and give."""


@dataclass(frozen=True)
class Product:
    """A product of two tensors, its axes named by letters."""

    factors: tuple[Tensor, Tensor]
    letters: tuple[str, str]
    out: str


class Lineage:
    """The origins of all tensors of a pass."""

    def __init__(self, constants: Iterable[Tensor]) -> None:
        self._constants = {id(tensor): tensor for tensor in constants}
        self._known: dict[int, tuple[weakref.ref[Tensor], Origin]] = {}
        self._inputs = 0
        self.inside = False
        """Whether a pass is running; what is made outside is an input of the next."""

    def begin(self) -> None:
        """Begin a new pass."""
        self.inside = True
        self._known = {i: known for i, known in self._known.items() if known[0]() is not None}

    def of(self, tensor: Tensor) -> Origin:
        """The origin of a tensor; one that nothing was seen to make is an input, a source of its own."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if self._constants.get(id(tensor)) is tensor:
            return PARAMETERS
        self._inputs += 1
        wide = not tensor.is_nested and tensor.ndim in (3, 4) and tensor.is_floating_point()
        widths = _channel(tensor, -1) if wide else ()
        return self._keep(tensor, Origin(frozenset((self._inputs,)), widths=widths))

    def _keep(self, tensor: Tensor, origin: Origin) -> Origin:
        self._known[id(tensor)] = weakref.ref(tensor), origin
        return origin

    def mark(self, tensor: Tensor, dim: int) -> None:
        """Say that an axis runs over channels."""
        origin = self.of(tensor)
        self._keep(tensor, replace(origin, channels=(*origin.channels, *_channel(tensor, dim))))

    def mix(self, tensor: Tensor, softmax: Hashable) -> None:
        """Say whose probabilities weighed the rows of a tensor."""
        self._keep(tensor, replace(self.of(tensor), mixed=softmax))

    def heads_first(self, query: Tensor) -> bool:
        """Whether queries are (heads, batch, tokens, size): the first axis is part of the features."""
        origin = self.of(query)
        ranges = (*origin.channels, *origin.widths)
        whole = [
            (1, size) in parts_of(query.stride(dim), size, ranges) for dim, size in enumerate(query.shape)
        ]
        return query.ndim == 4 and whole[0] and not whole[1]

    def with_inputs(self, call: AttentionCall, query: Tensor, key: Tensor) -> AttentionCall:
        """A call that knows the inputs of its queries and keys."""
        return replace(call, asking=self.of(query).sources, answering=self.of(key).sources)

    def follow(self, name: str, args: Sequence[Argument], result: Argument) -> Product | None:
        """Take note of what an operation of this name made; says which product it was, if it was one."""
        if not self.inside:
            return None
        product = product_of(name, args)
        if product is not None:
            made = next(tensors((result,)), None)
            if made is not None:
                self._keep(made, self._of_product(product, made))
            return product
        operands = list(tensors(args))
        if name in _ROWS_OF:
            at = _ROWS_OF[name]
            rows = self.of(operands[at]) if len(operands) > at else PARAMETERS
            sources = rows.sources
            if name == "aten::embedding" and sources:  # encoder and decoder may be given the same ids
                self._inputs += 1
                sources = sources | {self._inputs}
            for made in tensors((result,)):
                channels = _channel(made, _CHANNEL_OF[name]) if name in _CHANNEL_OF else ()
                self._keep(made, Origin(sources, weights=rows.weights, channels=channels))
            return None
        origins = [self.of(operand) for operand in operands]
        for made in tensors((result,)):
            self._keep(made, _merge(made, operands, origins))
        if name in ("aten::cat", "aten::stack") and len(operands) > 1:
            self._of_pieces(operands, args[1] if len(args) > 1 else 0, result)
        return None

    def _of_pieces(self, operands: list[Tensor], dim: Argument, result: Argument) -> None:
        """Equal slices of a feature axis that are laid one after the other are heads there."""
        made = next(tensors((result,)), None)
        starts = [start_of(operand, self.of(operand)) for operand in operands]
        steps = {later.offset - one.offset for one, later in pairwise(starts)}
        first = operands[0]
        alike = all(
            one.shape == first.shape and start.memory == starts[0].memory
            for one, start in zip(operands, starts, strict=True)
        )
        if made is None or not isinstance(dim, int) or not alike or len(steps) != 1:
            return
        step, inner = steps.pop(), 1 if made.ndim > first.ndim else first.shape[dim]
        stride = made.stride(dim) * inner
        for kind in ("channels", "widths"):
            ranges: Ranges = getattr(starts[0], kind)
            if any(low <= step < high for low, high in ranges):
                known = self.of(made)
                heads = (stride, stride * len(operands))
                kept: dict[str, Any] = {kind: (*getattr(known, kind), heads)}
                self._keep(made, replace(known, **kept))

    def _of_product(self, product: Product, made: Tensor) -> Origin:
        (left, right), (one, other) = product.factors, product.letters
        origins = self.of(left), self.of(right)
        if all(origin.weights for origin in origins):
            return PARAMETERS
        channels: dict[Range, None] = {}
        widths: dict[Range, None] = {}
        for factor, letters, origin, rest in (
            (left, one, origins[0], origins[1]),
            (right, other, origins[1], origins[0]),
        ):
            learned = origin.weights and not rest.weights
            if not (learned or origin.channels or origin.widths):
                continue
            own = set(one) - set(other) if letters is one else set(other) - set(one)
            # A product of queries and keys sums over features: of an input that was cut otherwise (the
            # columns of a picture whose channels stand first) the last axis is none.
            summed = [factor.stride(dim) for dim, letter in enumerate(letters) if letter not in product.out]
            given = (
                origin.widths if any(low <= s < high for s in summed for low, high in origin.widths) else ()
            )
            for dim, letter in enumerate(letters):
                if letter not in product.out:
                    continue
                at = product.out.index(letter)
                if learned and letter in own:
                    channels.update(dict.fromkeys(_channel(made, at)))
                channels.update(dict.fromkeys(_move(factor, dim, origin.channels, made, at)))
                widths.update(dict.fromkeys(_move(factor, dim, given, made, at)))
        if origins[0].weights or origins[1].weights:
            # Queries that are parameters ask, and have no tokens; a linear layer's have theirs.
            active = origins[1] if origins[0].weights else origins[0]
            return Origin(active.sources, active.sources, channels=tuple(channels), widths=tuple(widths))
        return Origin(
            origins[0].sources, origins[1].sources, pair=True, channels=tuple(channels), widths=tuple(widths),
            start=start_of(left, origins[0]),
        )  # fmt: skip


def is_channel(tensor: Tensor, dim: int, origin: Origin) -> bool:
    """Whether this axis of a tensor runs over channels."""
    if not origin.channels or tensor.shape[dim] < 2:
        return False
    stride = tensor.stride(dim)
    return any(low <= stride < high for low, high in origin.channels)


def _channel(tensor: Tensor, dim: int) -> Ranges:
    if tensor.ndim == 0 or not -tensor.ndim <= dim < tensor.ndim:
        return ()
    stride = tensor.stride(dim)
    return ((stride, stride * tensor.shape[dim]),)


def parts_of(stride: int, size: int, ranges: Ranges) -> list[Range]:
    """The parts of an axis that lie in ranges of strides, as multiples of its own: (1, size) is all of it.

    An axis of batch times four heads has the part (1, 4) of heads, one of four heads times batch the part
    (batch, 4 batch).
    """
    found = []
    for low, high in ranges:
        first, last = max(low, stride), min(high, stride * size)
        if (
            stride
            and first < last
            and first % stride == 0
            and last % first == 0
            and size * stride % last == 0
        ):
            found.append((first // stride, last // stride))
    return found


def _move(factor: Tensor, dim: int, ranges: Ranges, made: Tensor, at: int) -> Ranges:
    """The ranges of an axis of one tensor, in another that has the axis at its own place."""
    size = factor.shape[dim]
    if not ranges or size < 2 or made.shape[at] < 2:
        return ()
    stride = made.stride(at)
    parts = parts_of(factor.stride(dim), size, ranges)
    if size != made.shape[at]:  # cut, or joined to others
        return _channel(made, at) if (1, size) in parts else ()
    return tuple((low * stride, high * stride) for low, high in parts)


def _merge(made: Tensor, operands: list[Tensor], origins: list[Origin]) -> Origin:
    """Of a view, or of what works entry by entry on its operands."""
    if not operands:
        return PARAMETERS
    if len(operands) == 1:
        origin = origins[0]
        if not (origin.channels or origin.widths) or same_storage(made, operands[0]):
            return origin
        channels, widths = _carry(made, operands, origins)
        start = start_of(operands[0], origin) if is_slice(operands[0]) else origin.start
        return replace(origin, channels=channels, widths=widths, start=start)
    if all(origin.weights for origin in origins):
        return PARAMETERS
    pairs = [i for i, origin in enumerate(origins) if origin.pair and operands[i].ndim == made.ndim]
    chosen = pairs or range(len(operands))
    channels, widths = _carry(made, [operands[i] for i in chosen], [origins[i] for i in chosen])
    return Origin(
        # A mask that is added to scores has no part in whose they are.
        frozenset().union(*(origins[i].sources for i in chosen)),
        frozenset().union(*(origins[i].columns for i in chosen)),
        pair=bool(pairs),
        channels=channels,
        widths=widths,
        mixed=next((origin.mixed for origin in origins if origin.mixed is not None), None),
        start=next(
            (
                start_of(operands[i], origins[i])
                for i in chosen
                if not origins[i].weights and (is_slice(operands[i]) or origins[i].start is not None)
            ),
            None,
        ),
    )


def start_of(tensor: Tensor, origin: Origin) -> Start:
    """Where the slice of features lies that a tensor is, or was copied or computed from."""
    if origin.start is not None and not (is_slice(tensor) and not origin.pair):
        return origin.start
    return Start(storage_of(tensor), int(tensor.storage_offset()), origin.channels, origin.widths)


def _carry(made: Tensor, operands: list[Tensor], origins: list[Origin]) -> tuple[Ranges, Ranges]:
    """The channels and widths of a tensor that has its operands' axes one by one."""
    channels: dict[Range, None] = {}
    widths: dict[Range, None] = {}
    for operand, origin in zip(operands, origins, strict=True):
        if (origin.channels or origin.widths) and operand.ndim == made.ndim:
            for dim in range(made.ndim):
                channels.update(dict.fromkeys(_move(operand, dim, origin.channels, made, dim)))
                widths.update(dict.fromkeys(_move(operand, dim, origin.widths, made, dim)))
    return tuple(channels), tuple(widths)


def product_of(name: str, args: Sequence[Argument]) -> Product | None:
    """The product that an operation of this name is, or None."""
    form = _PRODUCTS.get(name)
    if form is None:
        return None
    if name == "aten::einsum":
        equation, operands = args[0], args[1]
        if not isinstance(equation, str) or not isinstance(operands, list | tuple) or len(operands) != 2:
            return None
        given, _, out = equation.replace(" ", "").partition("->")
        left, _, right = given.partition(",")
        if "." in equation or not out:
            return None
        one, other = operands
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            return None
        return Product((one, other), (left, right), out)
    at, letters, out = form
    one, other = args[at], args[at + 1]
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return None
    if name == "aten::linear":
        letters, out = (_BATCH[: one.ndim - 1] + "c", "nc"), _BATCH[: one.ndim - 1] + "n"
    elif name == "aten::matmul":
        batch = _BATCH[: max(one.ndim, other.ndim) - 2] if max(one.ndim, other.ndim) > 2 else ""
        letters = (
            "c" if one.ndim == 1 else batch[len(batch) - one.ndim + 2 :] + "mc",
            "c" if other.ndim == 1 else batch[len(batch) - other.ndim + 2 :] + "cn",
        )
        out = batch + "m" * (one.ndim > 1) + "n" * (other.ndim > 1)
    if one.ndim != len(letters[0]) or other.ndim != len(letters[1]):
        return None
    return Product((one, other), letters, out)


_BATCH = "ABDEFGHIJKL"
_PRODUCTS: dict[str, tuple[int, tuple[str, str], str]] = {
    "aten::mm": (0, ("mc", "cn"), "mn"),
    "aten::addmm": (1, ("mc", "cn"), "mn"),
    "aten::bmm": (0, ("bmc", "bcn"), "bmn"),
    "aten::baddbmm": (1, ("bmc", "bcn"), "bmn"),
    "aten::mv": (0, ("mc", "c"), "m"),
    "aten::linear": (0, ("", ""), ""),
    "aten::matmul": (0, ("", ""), ""),
    "aten::einsum": (0, ("", ""), ""),
}
_ROWS_OF = {
    "aten::embedding": 1,
    **dict.fromkeys(
        (
            "aten::convolution",
            "aten::conv1d",
            "aten::conv2d",
            "aten::layer_norm",
            "aten::native_layer_norm",
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_attention_math",
        ),
        0,
    ),
}
"""Operation -> which of its tensors its rows come from."""
_CHANNEL_OF = {
    "aten::embedding": -1,
    "aten::convolution": 1,
    "aten::conv1d": 1,
    "aten::conv2d": 1,
    "aten::layer_norm": -1,
}


def tensors(values: Iterable[Argument]) -> Iterator[Tensor]:
    """The strided tensors among arguments or results, lists of them included."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not value.is_nested:
                yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)

"""Where tensors come from, as far as it decides what a softmax and a mask are about.

Of every tensor that the dispatch mode sees made, three things are kept: which inputs its positions go back
to (queries and keys with a common one are the same tokens), whether parameters alone made it, and
which of its axes are channels, that is rows of a weight matrix. A softmax over channels (features, experts,
slots, codes) is no attention.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from joma.instruments.watch.call import AttentionCall

Ranges = tuple[tuple[int, int], ...]


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
    mixed: Hashable = None
    """The softmax whose probabilities were the first factor of the last product."""


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
        return self._keep(tensor, Origin(frozenset((self._inputs,))))

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

    def told(self, call: AttentionCall, query: Tensor, key: Tensor) -> AttentionCall:
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
            for made in tensors((result,)):
                channels = _channel(made, _CHANNEL_OF[name]) if name in _CHANNEL_OF else ()
                self._keep(made, Origin(rows.sources, weights=rows.weights, channels=channels))
            return None
        origins = [self.of(operand) for operand in operands]
        for made in tensors((result,)):
            self._keep(made, _merged(made, operands, origins))
        return None

    def _of_product(self, product: Product, made: Tensor) -> Origin:
        (left, right), (one, other) = product.factors, product.letters
        origins = self.of(left), self.of(right)
        if all(origin.weights for origin in origins):
            return PARAMETERS
        dims = set()
        for factor, letters, origin, rest in (
            (left, one, origins[0], origins[1]),
            (right, other, origins[1], origins[0]),
        ):
            own = set(one) - set(other) if letters is one else set(other) - set(one)
            for dim, letter in enumerate(letters):
                if letter in product.out and (
                    (origin.weights and not rest.weights and letter in own) or is_channel(factor, dim, origin)
                ):
                    dims.add(product.out.index(letter))
        channels = tuple(part for dim in sorted(dims) for part in _channel(made, dim))
        if origins[0].weights or origins[1].weights:
            # Queries that are parameters ask, and have no tokens; a linear layer's have theirs.
            active = origins[1] if origins[0].weights else origins[0]
            return Origin(active.sources, active.sources, channels=channels)
        return Origin(origins[0].sources, origins[1].sources, pair=True, channels=channels)


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


def _merged(made: Tensor, operands: list[Tensor], origins: list[Origin]) -> Origin:
    """Of a view, or of what works entry by entry on its operands."""
    if not operands:
        return PARAMETERS
    if len(operands) == 1:
        origin = origins[0]
        if not origin.channels or same_storage(made, operands[0]):
            return origin
        return replace(origin, channels=_carried(made, operands, origins))
    if all(origin.weights for origin in origins):
        return PARAMETERS
    pairs = [i for i, origin in enumerate(origins) if origin.pair and operands[i].ndim == made.ndim]
    chosen = pairs or range(len(operands))
    return Origin(
        frozenset().union(*(origin.sources for origin in origins)),
        frozenset().union(*(origin.columns for origin in origins)),
        pair=bool(pairs),
        channels=_carried(made, [operands[i] for i in chosen], [origins[i] for i in chosen]),
        mixed=next((origin.mixed for origin in origins if origin.mixed is not None), None),
    )


def _carried(made: Tensor, operands: list[Tensor], origins: list[Origin]) -> Ranges:
    found: dict[tuple[int, int], None] = {}
    for operand, origin in zip(operands, origins, strict=True):
        if origin.channels and operand.ndim == made.ndim:
            for dim in range(made.ndim):
                if is_channel(operand, dim, origin):
                    found.update(dict.fromkeys(_channel(made, dim)))
    return tuple(found)


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


def same_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in one piece of memory."""
    return storage_of(one) == storage_of(other)


def storage_of(tensor: Tensor) -> int:
    """The identity of the memory that a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


class Memory:
    """The memory of a tensor, while others keep it."""

    def __init__(self, tensor: Tensor) -> None:
        self._reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    def gone(self) -> bool:
        """Whether nobody keeps it any more."""
        return bool(self._reference.expired())  # type: ignore[no-untyped-call]

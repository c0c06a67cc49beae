"""Every softmax attention that PyTorch computes, seen as it is computed: the dispatch mode.

A ``TorchDispatchMode`` sits below autograd and sees each operation of the dispatcher with its
tensors. Three kinds of operation are attention:

* *kernel*: the scaled-dot-product kernels (flash, memory-efficient, cuDNN; the undivided operation
  under ``inference_mode``), which are handed queries and keys;
* *fused*: the fast paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, one
  operation that is handed hidden states and weights (:mod:`joma.probes.watching.fused` projects them);
* *softmax*: code that builds the scores itself. A softmax is taken for attention when its
  probabilities go into a matrix product, possibly through dropout, a cast or a scaling. A router's,
  a sampler's or an output layer's softmax does not.

The operations themselves run untouched, so that outputs and gradients are the same bit for bit.
Whatever looks like attention by its name and is none of these is reported as opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from joma.errors import InputError
from joma.probes.watching.call import AttentionCall, scaled_dot_product_call, scores_call
from joma.probes.watching.fused import fused_call

_PATIENCE = 64
"""Operations after which a softmax whose probabilities entered no matrix product is forgotten."""


@contextmanager
def unobserved() -> Iterator[None]:
    """Compute something that no dispatch mode sees, no autograd records and no autocast rounds."""
    with (
        _disable_current_modes(),
        torch.no_grad(),
        torch.autocast("cuda" if torch.cuda.is_available() else "cpu", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@dataclass
class _Candidate:
    """A softmax that has been measured and waits to see where its probabilities go."""

    commit: Callable[[], None]
    storages: list[torch.UntypedStorage]
    age: int = 0


@dataclass(eq=False)
class Observer:
    """What a mode reports to."""

    attention: Callable[[AttentionCall], Callable[[], None]]
    """Measures a call now and returns what makes the measurement count."""
    opaque: Callable[[str, str], None]
    """An operation that looks like attention and cannot be opened: its name, and why."""
    heads: Callable[[], int | None]
    """How many heads the module that is running has, if known."""
    active: Callable[[], bool] = lambda: True
    """Whether what is computed now is to be seen."""


class AttentionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports every attention to an :class:`Observer`, and leaves every operation as it is."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that keeps dynamo out: it imports it, and costs every operation time."""
        return False

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer
        self.candidates: list[_Candidate] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then look at it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kind = _KINDS.get(func)
        if kind is None:
            kind = _KINDS.setdefault(func, kind_of(func))
        if (kind == "plain" and not self.candidates) or not self.observer.active():
            return result
        if kind == "plain" or kind == "product":
            self._follow(kind, args, result)
        elif kind == "opaque":
            self.observer.opaque(str(func), "an operation that cannot be opened")
        else:
            self._attention(kind, func, args, kwargs, result)
        return result

    def _attention(
        self, kind: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = named_arguments(func, args, kwargs)
        try:
            with unobserved():
                if kind == "softmax":
                    self._softmax(str(func), given, result)
                    return
                call = fused_call(str(func), given) if kind == "fused" else _kernel_call(str(func), given)
                commit = self.observer.attention(call)
        except InputError as error:
            self.observer.opaque(str(func), str(error))
            return
        commit()

    def _softmax(self, operation: str, given: dict[str, Any], result: Tensor) -> None:
        scores: Tensor = given["self"]
        if scores.ndim < 2 or scores.shape[-1] < 2 or scores.numel() == 0 or scores.is_nested:
            return
        if given["dim"] not in (-1, scores.ndim - 1):
            why = f"a softmax over dimension {given['dim']} of {scores.ndim}, not over the last one"

            def commit() -> None:
                self.observer.opaque(operation, why)
        else:
            try:
                call = scores_call("softmax", operation, scores, self.observer.heads())
                commit = self.observer.attention(call)
            except InputError as error:
                why = str(error)

                def commit() -> None:
                    self.observer.opaque(operation, why)

        self.candidates.append(_Candidate(commit, [result.untyped_storage()]))

    def _follow(self, kind: str, args: tuple[Any, ...], result: Any) -> None:
        operands = list(_tensors(args))
        waiting = []
        for candidate in self.candidates:
            candidate.age += 1
            carriers = [tensor for tensor in operands if _lies_in(tensor, candidate.storages)]
            if carriers and kind == "product":
                candidate.commit()
                continue
            if carriers:
                sizes = {tensor.numel() for tensor in carriers}
                candidate.storages.extend(
                    tensor.untyped_storage()
                    for tensor in _tensors((result,))
                    if tensor.numel() in sizes and tensor.is_floating_point()
                )
            if candidate.age < _PATIENCE:
                waiting.append(candidate)
        self.candidates = waiting


def _kernel_call(operation: str, given: dict[str, Any]) -> AttentionCall:
    query, key = given["query"], given["key"]
    if query.is_nested or key.is_nested:
        raise InputError("nested tensors reach the kernel packed; pass padded tensors instead.")
    mask = given.get("attn_mask", given.get("attn_bias"))
    return scaled_dot_product_call(
        "kernel", operation, query, key, mask=mask, causal=given["is_causal"], scale=given["scale"]
    )


def named_arguments(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by the names of its schema, defaults filled in."""
    parameters = func._schema.arguments
    named = {p.name: p.default_value for p in parameters if p.has_default_value()}
    named.update(zip((p.name for p in parameters), args, strict=False))
    named.update(kwargs)
    return named


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not value.is_nested:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _lies_in(tensor: Tensor, storages: list[torch.UntypedStorage]) -> bool:
    mine = tensor.untyped_storage()._cdata
    return any(mine == storage._cdata for storage in storages)


_KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "scaled_dot_product_attention",
)
_NAMED_KINDS = {
    **dict.fromkeys(_KERNELS, "kernel"),
    **dict.fromkeys(("_transformer_encoder_layer_fwd", "_native_multi_head_attention"), "fused"),
    **dict.fromkeys(("_softmax", "_safe_softmax", "softmax"), "softmax"),
    **dict.fromkeys(("bmm", "baddbmm", "mm", "addmm", "mv", "matmul", "einsum"), "product"),
}
_KINDS: dict[Any, str] = {}


def kind_of(func: Any) -> str:
    """``kernel``, ``fused``, ``softmax``, ``product``, ``opaque`` (looks like attention) or ``plain``."""
    if not isinstance(func, OpOverload):
        name = str(func)  # a higher-order operation, such as flex_attention
        return "opaque" if "attention" in name else "plain"
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "aten" and name in _NAMED_KINDS:
        return _NAMED_KINDS[name]
    lowered = name.lower()
    looks = "attention" in lowered or "attn" in lowered or lowered in ("_masked_softmax", "fmha", "mha_fwd")
    return "opaque" if looks and "backward" not in lowered and "bwd" not in lowered else "plain"

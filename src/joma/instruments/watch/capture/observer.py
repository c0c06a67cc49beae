"""Every softmax attention that PyTorch computes, seen as it is computed: the dispatch mode.

A ``TorchDispatchMode`` sits below autograd and sees each operation of the dispatcher with its
tensors. Four kinds of operation are attention:

* *kernel*: the scaled-dot-product kernels (flash, memory-efficient, cuDNN; the undivided operation
  under ``inference_mode``), which are handed queries and keys;
* *flex*: ``flex_attention``, which is handed queries, keys, and functions that change and hide scores;
* *fused*: the fast paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, one
  operation that is handed hidden states and weights (``joma.instruments.watch.capture.fused`` projects them);
* *softmax*: code that builds the scores itself. A softmax is taken for attention when its
  probabilities weigh the rows of a matrix product (``joma.instruments.watch.capture.candidates``).

The operations themselves run untouched, so that outputs and gradients are the same bit for bit.
Whatever looks like attention by its name and is none of these is reported as opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from joma.core.errors import InputError
from joma.instruments.watch.call import AttentionCall, scaled_dot_product_call, with_value
from joma.instruments.watch.capture.candidates import Candidates, Report
from joma.instruments.watch.capture.flex import flex_call
from joma.instruments.watch.capture.fused import fused_call
from joma.instruments.watch.capture.lineage import Lineage
from joma.instruments.watch.owners import Place, in_backward


@contextmanager
def leave_unobserved() -> Iterator[None]:
    """Compute something that no dispatch mode sees, no autograd records and no autocast rounds."""
    with (
        _disable_current_modes(),
        torch.no_grad(),
        torch.autocast("cuda" if torch.cuda.is_available() else "cpu", enabled=False),
        torch.autocast("cpu", enabled=False),
    ):
        yield


@dataclass(eq=False)
class Observer:
    """What a mode reports to."""

    report: Report
    """Calls of attention, softmaxes that are none, and operations that look like attention and cannot be
    opened."""
    place: Callable[[], Place]
    """Where the operation that runs is."""
    active: Callable[[], bool] = lambda: True
    """Whether what is computed now is to be seen."""
    failed: Callable[[Exception], None] | None = None
    """Told what went wrong in the watching itself, which must not end the model's pass; None: it is
    raised.
    """


class AttentionMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports every attention to an ``Observer``, and leaves every operation as it is."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper that keeps dynamo out: it imports it, and costs every operation time."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled is seen when it runs: ``flex_attention`` compiles itself at its first call."""
        return True

    def __init__(self, observer: Observer, lineage: Lineage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer, self.lineage = observer, lineage
        self.candidates = Candidates(lineage, observer.report)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then look at it."""
        kwargs = kwargs or {}
        kind = _KINDS.get(func)
        if kind is None:
            kind = _KINDS.setdefault(func, kind_of(func))
        if not isinstance(func, OpOverload) or in_backward():
            result = func(*args, **kwargs)
            if kind == "flex" and self.observer.active() and not in_backward():
                with leave_unobserved():
                    call = flex_call(*args, **kwargs)
                    call = self.lineage.with_inputs(call, args[0], args[1])
                    self.observer.report.attention(call, self.observer.place())
            elif kind == "opaque" and self.observer.active():
                self.observer.report.opaque(str(func), "an operation that cannot be opened")
            if kind == "flex" and isinstance(result, tuple):
                self.lineage.follow("aten::scaled_dot_product_attention", args[:1], result[0])
            return result
        copy: Tensor | None = None
        try:
            copy = self._before(kind, func, args, kwargs)
        except Exception as error:
            self._fail(error)
        result = func(*args, **kwargs)
        try:
            self._after(kind, func, args, kwargs, result, copy)
        except Exception as error:
            self._fail(error)
        return result

    def _fail(self, error: Exception) -> None:
        if self.observer.failed is None:
            raise error
        self.observer.failed(error)

    def _after(
        self,
        kind: str,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        copy: Tensor | None,
    ) -> None:
        given = (*args, *kwargs.values())
        product = self.lineage.follow(func._schema.name, given, result)
        if not self.observer.active():
            return
        if kind == "plain" or kind == "product":
            if self.candidates:
                with leave_unobserved():
                    self.candidates.follow(func._schema.name, given, result, product)
        elif kind == "opaque":
            self.observer.report.opaque(str(func), "an operation that cannot be opened")
        else:
            self._attention(kind, func, args, kwargs, result, copy)

    def _before(
        self, kind: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """Keep what an operation is about to overwrite: a copy of a softmax's scores, if it is one."""
        if not func._schema.is_mutable or not (self.candidates or kind == "softmax"):
            return None
        with leave_unobserved():
            written = kwargs.get("out", args[0] if args else None)
            if self.candidates and isinstance(written, Tensor):
                self.candidates.before_writing(written)
            if kind == "softmax":
                scores: Tensor = named_arguments(func, args, kwargs)["self"]
                return scores.detach().clone()
        return None

    def _attention(
        self,
        kind: str,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        copy: Tensor | None,
    ) -> None:
        given = named_arguments(func, args, kwargs)
        report = self.observer.report
        try:
            with leave_unobserved():
                if kind == "softmax":
                    scores: Tensor = given["self"]
                    if scores.ndim and scores.numel() and not scores.is_nested:
                        place = self.observer.place()
                        self.candidates.add(str(func), scores, copy, given["dim"], result, place)
                    return
                call = fused_call(str(func), given) if kind == "fused" else _kernel_call(str(func), given)
                if kind == "kernel" and self.lineage.heads_first(given["query"]):
                    call = call.heads_second()
                query = given["src"] if "src" in given else given["query"]
                call = self.lineage.with_inputs(call, query, given.get("key", query))
                report.attention(call, self.observer.place())
        except InputError as error:
            report.opaque(str(func), str(error))


def _kernel_call(operation: str, given: dict[str, Any]) -> AttentionCall:
    query, key = given["query"], given["key"]
    if query.is_nested or key.is_nested:
        raise InputError("nested tensors reach the kernel packed; pass padded tensors instead.")
    mask = given.get("attn_mask", given.get("attn_bias"))
    call = scaled_dot_product_call(
        "kernel", operation, query, key, mask=mask, causal=given["is_causal"], scale=given["scale"]
    )
    return with_value(call, given.get("value"))


def named_arguments(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by the names of its schema, defaults filled in."""
    parameters = func._schema.arguments
    named = {p.name: p.default_value for p in parameters if p.has_default_value()}
    named.update(zip((p.name for p in parameters), args, strict=False))
    named.update(kwargs)
    return named


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
    **dict.fromkeys(("bmm", "baddbmm", "mm", "addmm", "mv", "matmul", "einsum", "linear"), "product"),
}
_KINDS: dict[Any, str] = {}


def kind_of(func: Any) -> str:
    """``kernel``, ``fused``, ``softmax``, ``product``, ``flex``, ``opaque`` (looks like one) or ``plain``."""
    if not isinstance(func, OpOverload):
        name = str(func)  # a higher-order operation
        if name == "flex_attention":
            return "flex"
        return "opaque" if "attention" in name else "plain"
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "aten" and name in _NAMED_KINDS:
        return _NAMED_KINDS[name]
    lowered = name.lower()
    looks = "attention" in lowered or "attn" in lowered or lowered in ("_masked_softmax", "fmha", "mha_fwd")
    return "opaque" if looks and "backward" not in lowered and "bwd" not in lowered else "plain"

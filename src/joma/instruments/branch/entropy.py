"""A loss term of attention's entropy: held where it is, or kept above or below a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from joma.core.errors import InputError
from joma.measures.attention.entropy import attention_entropy
from joma.models.decoder import DecoderLayer

NO_ATTENTION = (
    "branch: {way} sees no attention in the training step; let the model call scaled_dot_product_attention, "
    "or change it by a function in the place of words."
)
WAYS = ("hold-entropy", "entropy-floor", "entropy-ceiling")
STRENGTH = 10.0
"""Of the term, per squared nat."""


class AttentionCalls(TorchFunctionMode):
    """The calls of scaled dot-product attention while the mode is on: what attention_entropy is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is functional.scaled_dot_product_attention:
            named = dict(
                zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)
            )
            named |= kwargs
            call = {"query": named["query"], "key": named["key"], "scale": named.get("scale")}
            if named.get("is_causal"):
                call |= {"causal": True, "first_position": 0}
            if named.get("attn_mask") is not None:
                call["mask"] = named["attn_mask"]
            self.calls.append(call)
        return function(*args, **kwargs)

    def keep_decoder(self, layer: DecoderLayer, projected: Tensor) -> None:
        """A layer of joma's own decoders, which multiplies out its attention."""
        query, key, _ = layer.split(projected)
        self.calls.append({"query": query, "key": key, "causal": True})


@contextmanager
def attention_calls(model: nn.Module) -> Iterator[list[dict[str, Any]]]:
    """Queries and keys of every attention call of a model, with their gradients, as long as this lasts."""
    mode = AttentionCalls()
    hooks = [
        layer.in_projection.register_forward_hook(
            lambda _, __, projected, layer=layer: mode.keep_decoder(layer, projected)
        )
        for layer in model.modules()
        if isinstance(layer, DecoderLayer)
    ]
    try:
        with mode:
            yield mode.calls
    finally:
        for hook in hooks:
            hook.remove()


def mean_entropies(calls: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """The mean entropy of each call (nats), over samples, heads and rows; it can be differentiated."""
    return [attention_entropy(**call, differentiable=True).entropy.nanmean() for call in calls]


@dataclass
class EntropyTerm:
    """Strength times the square by which each layer's mean entropy is off its target, summed over layers."""

    way: str
    target: float | None
    """Nats, of every layer; None: each layer's own at the branch's first step."""
    strength: float = STRENGTH
    own: list[float] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Of the present step."""

    @contextmanager
    def around(self, model: nn.Module, run: Callable[[nn.Module], object]) -> Iterator[None]:
        """While a step is done."""
        with attention_calls(model) as self.calls:
            yield

    def goal(self, loss: Tensor) -> Tensor:
        """The step's loss and the term."""
        return loss + self.of(self.calls)

    def of(self, calls: Sequence[Mapping[str, Any]]) -> Tensor:
        """The term, on what a step's calls attended with; calls without a gradient are left out.

        Raises:
            InputError: the step called no attention that is seen.
        """
        calls = [call for call in calls if call["query"].requires_grad or call["key"].requires_grad]
        if not calls:
            raise InputError(NO_ATTENTION.format(way=self.way))
        entropies = mean_entropies(calls)
        if not self.own:
            self.own = [float(one.detach()) if self.target is None else self.target for one in entropies]
        off = [one - target for one, target in zip(entropies, self.own, strict=True)]
        if self.way == "entropy-floor":
            off = [one.clamp_max(0.0) for one in off]
        if self.way == "entropy-ceiling":
            off = [one.clamp_min(0.0) for one in off]
        return self.strength * torch.stack([one.square() for one in off]).sum()

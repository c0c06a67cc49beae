"""Attention that is replaced while a branch is trained: uniform, a mean, that of before, hotter."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from joma.core.errors import InputError
from joma.instruments.branch.entropy import NO_ATTENTION
from joma.models.decoder import DecoderLayer

WAYS = ("uniform-attention", "mean-attention", "frozen-attention", "attention-temperature")
Logits = Callable[[Tensor], Tensor]
"""Logits (batch, heads, queries, keys), -inf where nothing is seen -> those that take their place."""


@dataclass
class AttentionChange:
    """One branch's change of the logits of every attention call in its training step."""

    way: str
    temperature: float = 1.0
    before: nn.Module | None = None
    """The model where the branches part, for ``frozen-attention``."""
    kept: list[Tensor] = field(default_factory=list)
    """The logits that it has on the present batch, call by call."""
    calls: int = 0
    """Attention calls of the present step so far."""

    @contextmanager
    def around(self, model: nn.Module, run: Callable[[nn.Module], object]) -> Iterator[None]:
        """While a step is done; ``run`` does its forward pass with another model."""
        self.kept, self.calls = [], 0
        if self.way == "frozen-attention":
            if self.before is None:
                self.before = copy.deepcopy(model).eval()
            with torch.no_grad(), torch.random.fork_rng(), through_logits(self.before, self._keep):
                run(self.before)
        with through_logits(model, self.of):
            yield

    def goal(self, loss: Tensor) -> Tensor:
        """The step's own loss.

        Raises:
            InputError: the step called no attention.
        """
        if not self.calls:
            raise InputError(NO_ATTENTION.format(way=self.way))
        return loss

    def _keep(self, logits: Tensor) -> Tensor:
        self.kept.append(logits)
        return logits

    def of(self, logits: Tensor) -> Tensor:
        """What takes the place of one call's logits."""
        self.calls += 1
        if self.way == "uniform-attention":
            return torch.where(logits.isneginf(), logits, 0.0)
        if self.way == "attention-temperature":
            return logits / self.temperature
        if self.way == "mean-attention":
            mean = torch.softmax(logits, -1).mean(0, keepdim=True)
            return torch.where(mean > 0, mean, 1.0).log().masked_fill(mean == 0, -math.inf).expand_as(logits)
        if self.calls > len(self.kept):
            raise InputError(
                f"branch: {self.way} sees {self.calls} attention calls where the model of before made "
                f"{len(self.kept)}; let step(model, batch) depend on its arguments alone."
            )
        return self.kept[self.calls - 1]


class _LogitsFunction(nn.Module):
    """In a layer of joma's own decoders: what its logits go through."""

    def __init__(self, logits: Logits, before: nn.Module) -> None:
        super().__init__()
        self.logits, self.before = logits, before

    def forward(self, logits: Tensor) -> Tensor:
        """The logits that take the place of these."""
        return self.logits(self.before(logits))


class _DenseAttention(TorchFunctionMode):
    """Scaled dot-product attention, multiplied out, its logits going through a function."""

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        self.logits = logits

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            return self.attend(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """As PyTorch's; memory grows with the square of the text."""
        if enable_gqa:
            key, value = (
                one.repeat_interleave(query.shape[-3] // one.shape[-3], dim=-3) for one in (key, value)
            )
        logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
            logits = logits.masked_fill(~seen, -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            logits = (logits + attn_mask).masked_fill(attn_mask <= _HIDDEN, -math.inf)
        probabilities = torch.softmax(self.logits(logits), -1)
        return functional.dropout(probabilities, dropout_p, training=dropout_p > 0) @ value


_HIDDEN = -3e4
"""What a float mask says of a key that is not seen, at most."""


@contextmanager
def through_logits(model: nn.Module, logits: Logits) -> Iterator[None]:
    """Every attention call of the model has its logits go through a function, as long as this lasts."""
    layers = [layer for layer in model.modules() if isinstance(layer, DecoderLayer)]
    before = [layer.sharpen for layer in layers]
    for layer in layers:
        layer.sharpen = _LogitsFunction(logits, layer.sharpen)
    try:
        with _DenseAttention(logits):
            yield
    finally:
        for layer, sharpen in zip(layers, before, strict=True):
            layer.sharpen = sharpen

"""Many small GPTs of one shape, side by side in stacked weights: one call of torch for all.

On small networks the cost of a step is dispatch, not arithmetic. Weights have a leading axis of networks, and
batched products keep the networks apart: what happens to one (a loss that is not finite) touches no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from joma.core.errors import InputError

_HIDDEN = -1e9
"""Logit of a key that is not visible: finite, so that 0 times it is 0."""


@dataclass(frozen=True, kw_only=True)
class GPTShape:
    """What all networks of an ensemble have in common."""

    vocabulary_size: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    length: int = 64
    norm: Literal["pre", "post"] = "pre"
    qk_norm: bool = False
    """Queries and keys of each head have root mean square one, times a learned gain."""
    activation: Literal["gelu", "relu"] = "gelu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(
                f"width = {self.width} is not a multiple of heads = {self.heads}; choose divisors."
            )


@dataclass(frozen=True)
class GPTSeen:
    """What one pass shows of each network; detached, float32."""

    normalised_entropy: Tensor
    """(networks, layers, heads): mean over rows of two keys or more of the entropy over log n."""
    largest_logit: Tensor
    """(networks, layers, heads): the largest scaled logit of a visible key."""
    residual_rms: Tensor
    """(networks, layers): root mean square of the block's output."""
    residual_kurtosis: Tensor
    """(networks, layers): fourth moment over the squared second, about zero."""


class GPTEnsemble:
    """Decoder-only transformers: learned positions, MLP of four times the width, no biases.

    Args:
        shape: of each network.
        seeds: of the initial weights; one network each. A network's weights depend on its seed alone.
    """

    def __init__(self, shape: GPTShape, seeds: Sequence[int]) -> None:
        self.shape = shape
        each = [_initial(shape, torch.Generator().manual_seed(seed)) for seed in seeds]
        self.weights: dict[str, Tensor] = {
            name: torch.stack([weights[name] for weights in each]).requires_grad_() for name in each[0]
        }
        """Name -> (networks, ...). Names of layer l begin with ``{l}.``."""
        self._mask = torch.full((shape.length, shape.length), _HIDDEN).triu(1)
        # 1 / log(keys), spread over rows so that a sum is the mean over the rows with two keys or more.
        keys = torch.arange(1, shape.length + 1, dtype=torch.float32)
        self._per_row = torch.where(keys > 1, 1 / keys.log().clamp_min(1e-9), 0) / (shape.length - 1)

    def losses(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, GPTSeen]:
        """Mean cross-entropy (nats) of each network on its own batch, (networks,), and what the pass shows.

        Args:
            inputs: (networks, batch, length) of int64; targets: likewise.
        """
        shape, weights = self.shape, self.weights
        networks, batch, length = inputs.shape
        offsets = torch.arange(networks)[:, None, None] * shape.vocabulary_size
        table = weights["embedding"].reshape(-1, shape.width)
        x = F.embedding(inputs + offsets, table) + weights["positions"][:, None]
        x = self._drop(x.reshape(networks, batch * length, shape.width))
        seen: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for layer in range(shape.layers):
            x, entropy, logit = self._block(layer, x, batch)
            squares = x.detach().square()
            mean = squares.mean((1, 2))
            seen.append((entropy, logit, mean.sqrt(), squares.square().mean((1, 2)) / mean.square()))
        if shape.norm == "pre":
            x = self._norm("final", x)
        logits = torch.bmm(x, weights["output"])
        each = F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1), reduction="none")
        return each.view(networks, -1).mean(1), GPTSeen(
            *(torch.stack(values, 1) for values in zip(*seen, strict=True))
        )

    def _block(self, layer: int, x: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        weights, before = self.weights, self.shape.norm == "pre"
        read = self._norm(f"{layer}.attention", x) if before else x
        mixed, entropy, logit = self._attention(layer, read, batch)
        x = x + self._drop(torch.bmm(mixed, weights[f"{layer}.mix"]))
        if not before:
            x = self._norm(f"{layer}.attention", x)
        read = self._norm(f"{layer}.mlp", x) if before else x
        hidden = torch.bmm(read, weights[f"{layer}.lower"])
        hidden = F.gelu(hidden, approximate="tanh") if self.shape.activation == "gelu" else torch.relu(hidden)
        x = x + self._drop(torch.bmm(hidden, weights[f"{layer}.upper"]))
        return (x if before else self._norm(f"{layer}.mlp", x)), entropy, logit

    def _attention(self, layer: int, x: Tensor, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        networks, rows, width = x.shape
        heads = self.shape.heads

        def split(name: str) -> Tensor:
            flat = torch.bmm(x, self.weights[f"{layer}.{name}"])
            return flat.view(networks, batch, rows // batch, heads, width // heads).transpose(2, 3)

        query, key, value = split("query"), split("key"), split("value")
        if self.shape.qk_norm:
            gains = self.weights[f"{layer}.qk_gain"].view(networks, 2, 1, 1, 1, 1)
            query = F.rms_norm(query, (width // heads,)) * gains[:, 0]
            key = F.rms_norm(key, (width // heads,)) * gains[:, 1]
        logits = torch.matmul(query * (width // heads) ** -0.5, key.transpose(-2, -1)) + self._mask
        attention = torch.softmax(logits, dim=-1)
        with torch.no_grad():
            largest = logits.amax(-1)
            # H = log Z - E[logit], and log Z = largest logit - log(largest probability).
            entropy = largest - attention.amax(-1).log() - (attention * logits).sum(-1)
            entropy = (entropy.clamp_min(0) * self._per_row).sum(-1).mean(1)
            most = largest.amax((1, 3))
        mixed = torch.matmul(self._drop(attention), value).transpose(2, 3).reshape(networks, rows, width)
        return mixed, entropy, most

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weights[f"{name}_gain"][:, None]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.shape.dropout) if self.shape.dropout else x


def _initial(shape: GPTShape, generator: torch.Generator) -> dict[str, Tensor]:
    width, hidden = shape.width, 4 * shape.width

    def normal(*size: int, spread: float) -> Tensor:
        return torch.randn(*size, generator=generator) * spread

    weights = {
        "embedding": normal(shape.vocabulary_size, width, spread=0.02),
        "positions": normal(shape.length, width, spread=0.02),
    }
    # GPT-2's: what ends in the residual stream is smaller by the root of twice the layers.
    residual = 1 / math.sqrt(2 * shape.layers)
    for layer in range(shape.layers):
        for name in ("query", "key", "value"):
            weights[f"{layer}.{name}"] = normal(width, width, spread=width**-0.5)
        weights[f"{layer}.mix"] = normal(width, width, spread=width**-0.5 * residual)
        weights[f"{layer}.lower"] = normal(width, hidden, spread=width**-0.5)
        weights[f"{layer}.upper"] = normal(hidden, width, spread=hidden**-0.5 * residual)
        weights[f"{layer}.attention_gain"] = torch.ones(width)
        weights[f"{layer}.mlp_gain"] = torch.ones(width)
        if shape.qk_norm:
            weights[f"{layer}.qk_gain"] = torch.ones(2)
    if shape.norm == "pre":
        weights["final_gain"] = torch.ones(width)
    return weights | {"output": normal(width, shape.vocabulary_size, spread=0.02)}

"""Attention that stops learning in the midst of training, while all else goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from joma.errors import InputError
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder, DecoderLayer

LARGEST_STEP = 0.5


class _StoppedLayer(nn.Module):
    """A decoder layer around the same parameters, with another rule for its attention.

    The parameters stay the objects that the optimizer knows; one that is not read here receives a zero
    gradient, and whatever the optimizer's momentum still does to it is not seen.
    """

    def __init__(self, layer: DecoderLayer) -> None:
        super().__init__()
        self.layer = layer
        self.train(layer.training)

    @property
    def lower(self) -> nn.Linear:
        """The lower MLP layer, where :meth:`Decoder.lower_mlp_weights` looks for it."""
        return self.layer.lower

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values (batch, length, 3 width)."""
        projected: Tensor = self.layer.in_projection(x)
        return projected

    def sharpen(self, logits: Tensor) -> Tensor:
        """The logits as they enter the softmax."""
        return logits

    def forward(self, x: Tensor, mask: Tensor, observe: Callable[[Tensor], None] | None = None) -> Tensor:
        """As :meth:`DecoderLayer.forward`."""
        layer = self.layer
        batch, length, width = x.shape
        split = self.project(x).view(batch, length, 3, layer.heads, width // layer.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        logits = torch.matmul(query * (width // layer.heads) ** -0.5, key.transpose(-2, -1)) + mask
        attention = torch.softmax(self.sharpen(logits), dim=-1)
        if observe is not None:
            observe(attention)
        mixed = torch.matmul(layer.dropout(attention), value).transpose(1, 2).reshape(batch, length, width)
        x = layer.attention_norm(x + layer.dropout(layer.out_projection(mixed)))
        hidden = layer.dropout(torch.relu(layer.lower(x)))
        normed: Tensor = layer.mlp_norm(x + layer.dropout(layer.upper(hidden)))
        return normed


class FrozenProjections(_StoppedLayer):
    """Query and key projections as they are now, for good; values, MLP and norms go on learning.

    The pattern still follows what reaches it from below: the embeddings and lower layers.
    """

    def __init__(self, layer: DecoderLayer) -> None:
        super().__init__(layer)
        width = layer.in_projection.in_features
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("weight", layer.in_projection.weight.detach()[: 2 * width].clone())
        self.register_buffer("bias", layer.in_projection.bias.detach()[: 2 * width].clone())

    def project(self, x: Tensor) -> Tensor:
        learned, begin = self.layer.in_projection, len(self.weight)
        return torch.cat(
            [
                nn.functional.linear(x, self.weight, self.bias),
                nn.functional.linear(x, learned.weight[begin:], learned.bias[begin:]),
            ],
            dim=-1,
        )


class PinnedEntropy(_StoppedLayer):
    """Attention goes on learning, but each head's mean entropy is held where it is now.

    A factor on the logits (an inverse temperature) is corrected by one Newton step a minibatch: with
    ``dH/d log(factor) = -mean Var_p(logits)``. No gradient passes through the factor.
    """

    def __init__(self, layer: DecoderLayer, target: Tensor) -> None:
        super().__init__(layer)
        self.target: Tensor
        self.log_factor: Tensor
        self.register_buffer("target", target.clone())
        self.register_buffer("log_factor", torch.zeros_like(target))

    def sharpen(self, logits: Tensor) -> Tensor:
        if self.training:
            self._correct(logits.detach())
        return logits * self.log_factor.exp()[:, None, None]

    def _correct(self, logits: Tensor) -> None:
        scaled = logits * self.log_factor.exp()[:, None, None]
        attention = torch.softmax(scaled, dim=-1)
        finite = torch.where(attention > 0, scaled, 0.0)
        mean = (attention * finite).sum(-1, keepdim=True)
        variance = (attention * (finite - mean).square()).sum(-1).mean(dim=(0, 2))
        excess = entropy_of_probabilities(attention).mean(dim=(0, 2)).to(variance) - self.target
        step = torch.where(variance > 1e-8, excess / variance.clamp_min(1e-8), torch.zeros_like(excess))
        self.log_factor += step.clamp(-LARGEST_STEP, LARGEST_STEP)


def stop_attention(model: Decoder, how: str, entropies: dict[int, list[float]]) -> None:
    """From now on every layer's attention is stopped: ``projections`` or ``entropy``.

    Args:
        model: changed in place; it keeps its parameters.
        how: :class:`FrozenProjections` or :class:`PinnedEntropy`.
        entropies: each layer's present mean entropy per head (nats), needed for ``entropy``.

    Raises:
        InputError: an unknown way.
    """
    for number, layer in enumerate(list(model.layers)):
        if not isinstance(layer, DecoderLayer):
            raise InputError(f"stop_attention: the attention of layer {number} was stopped before.")
        if how == "projections":
            model.layers[number] = FrozenProjections(layer)
        elif how == "entropy":
            model.layers[number] = PinnedEntropy(layer, torch.tensor(entropies[number]))
        else:
            raise InputError(f"stop_attention: {how!r} is neither 'projections' nor 'entropy'.")

"""Attention that stops learning in the midst of training, while all else goes on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder

LARGEST_STEP = 0.5


class FrozenProjections(nn.Module):
    """In place of a layer's input projection: queries and keys as they are now, for good.

    The pattern still follows what reaches it from below: the embeddings and lower layers. The parameters
    stay the objects that the optimizer knows; those of queries and keys receive a zero gradient, and
    whatever the optimizer's momentum still does to them is not seen.
    """

    def __init__(self, learned: nn.Linear) -> None:
        super().__init__()
        self.learned = learned
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("weight", learned.weight.detach()[: 2 * learned.in_features].clone())
        self.register_buffer("bias", learned.bias.detach()[: 2 * learned.in_features].clone())

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values (batch, length, 3 width)."""
        begin = len(self.weight)
        values = nn.functional.linear(x, self.learned.weight[begin:], self.learned.bias[begin:])
        return torch.cat([nn.functional.linear(x, self.weight, self.bias), values], dim=-1)


class PinnedEntropy(nn.Module):
    """On the way to the softmax: each head's mean entropy is held at the target, while attention learns on.

    A factor on the logits (an inverse temperature) is corrected by one Newton step a minibatch: with
    ``dH/d log(factor) = -mean Var_p(logits)``. No gradient passes through the factor.
    """

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.target: Tensor
        self.log_factor: Tensor
        self.register_buffer("target", target.clone())
        self.register_buffer("log_factor", torch.zeros_like(target))

    def forward(self, logits: Tensor) -> Tensor:
        """The logits (batch, heads, queries, keys) times the factor of their head."""
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
        how: ``FrozenProjections`` or ``PinnedEntropy``.
        entropies: each layer's present mean entropy per head (nats), needed for ``entropy``.

    Raises:
        InputError: an unknown way.
    """
    for number, layer in enumerate(model.layers):
        projection = layer.in_projection
        if not isinstance(projection, nn.Linear) or isinstance(layer.sharpen, PinnedEntropy):
            raise InputError(f"stop_attention: the attention of layer {number} was stopped before.")
        if how == "projections":
            layer.in_projection = FrozenProjections(projection).train(layer.training)
        elif how == "entropy":
            layer.sharpen = PinnedEntropy(torch.tensor(entropies[number])).train(layer.training)
        else:
            raise InputError(f"stop_attention: {how!r} is neither 'projections' nor 'entropy'.")

"""The decoder of the JoMA paper's Fig. 6: post-norm encoder layers under a causal mask."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.models.language_model import AttentionObserver, LanguageModel


class DecoderLayer(nn.Module):
    """Self-attention, then a two-layer ReLU MLP, each followed by residual addition and LayerNorm.

    The same function and the same initialisation as ``nn.TransformerEncoderLayer`` (post-norm,
    ReLU, dropout on the attention probabilities too), written out so that the attention
    probabilities can be observed without a second computation.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.in_projection = nn.Linear(width, 3 * width)
        self.out_projection = nn.Linear(width, width)
        self.lower = nn.Linear(width, hidden)
        self.upper = nn.Linear(hidden, width)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.sharpen: nn.Module = nn.Identity()
        """What the logits go through on their way to the softmax, for interventions."""
        nn.init.xavier_uniform_(self.in_projection.weight)
        nn.init.zeros_(self.in_projection.bias)
        nn.init.zeros_(self.out_projection.bias)

    def forward(self, x: Tensor, mask: Tensor, observe: Callable[[Tensor], None] | None = None) -> Tensor:
        """``x``: (batch, length, width); ``mask``: (length, length) of 0 and -inf, added to the logits."""
        batch, length, width = x.shape
        split = self.in_projection(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        logits = torch.matmul(query * (width // self.heads) ** -0.5, key.transpose(-2, -1)) + mask
        attention = torch.softmax(self.sharpen(logits), dim=-1)
        if observe is not None:
            observe(attention)
        mixed = torch.matmul(self.dropout(attention), value).transpose(1, 2).reshape(batch, length, width)
        x = self.attention_norm(x + self.dropout(self.out_projection(mixed)))
        hidden = self.dropout(torch.relu(self.lower(x)))
        normed: Tensor = self.mlp_norm(x + self.dropout(self.upper(hidden)))
        return normed


class Decoder(LanguageModel):
    """A language model: scaled embedding, sinusoidal positions, decoder layers, output layer.

    Args:
        vocabulary_size: number of tokens.
        layers: number of decoder layers.
        width: embedding size d; hidden: width of the MLP's hidden layer; heads: attention heads.
        dropout: probability, in the positions, the attention and the MLP.
        longest: longest sequence.

    Embedding and output weights start uniform in +-0.1, the output bias at zero, as the authors' do.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        layers: int,
        width: int = 200,
        hidden: int = 200,
        heads: int = 1,
        dropout: float = 0.2,
        longest: int = 512,
    ) -> None:
        super().__init__()
        if width % heads:
            raise InputError(
                f"width = {width} is not a multiple of heads = {heads}; choose heads that divide it."
            )
        if width % 2:
            raise InputError(f"width = {width} must be even (sine and cosine positions come in pairs).")
        self.width = width
        self.embedding = nn.Embedding(vocabulary_size, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        self.positions: Tensor
        self.mask: Tensor
        self.register_buffer("positions", sinusoidal_positions(longest, width), persistent=False)
        mask = torch.full((longest, longest), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def hidden_states(self, tokens: Tensor, observe: AttentionObserver | None = None) -> Tensor:
        """Tokens (batch, length) -> last hidden states (batch, length, width), without logits."""
        length = tokens.shape[1]
        longest = self.positions.shape[0]
        if length > longest:
            raise InputError(f"a sequence of {length} tokens is longer than the model's {longest} positions.")
        positions, mask = self.positions[:length], self.mask[:length, :length]
        x: Tensor = self.dropout(self.embedding(tokens) * math.sqrt(self.width) + positions)
        for number, layer in enumerate(self.layers):
            x = layer(x, mask, None if observe is None else lambda p, n=number: observe(n, p))
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) -> logits (batch, length, vocabulary)."""
        logits: Tensor = self.output(self.hidden_states(tokens))
        return logits

    def keep_queries_and_keys(self) -> None:
        """From now on W_Q and W_K (and their biases) have no gradient, and stay while all else is trained."""
        layers: list[DecoderLayer] = list(self.layers)  # type: ignore[arg-type]
        for layer in layers:
            for parameter in (layer.in_projection.weight, layer.in_projection.bias):
                kept = torch.ones_like(parameter)
                kept[: 2 * self.width] = 0.0
                parameter.register_hook(kept.mul)  # type: ignore[no-untyped-call]

    def queries_and_keys(self) -> list[Tensor]:
        """W_Q and W_K and their biases, of each layer: views into the parameters, without gradients."""
        layers: list[DecoderLayer] = list(self.layers)  # type: ignore[arg-type]
        projections = [layer.in_projection for layer in layers]
        return [part.detach()[: 2 * self.width] for one in projections for part in (one.weight, one.bias)]

    def lower_mlp_weights(self) -> list[Tensor]:
        """The lower MLP layer's weight of each layer, (hidden, width): the W of the JoMA paper."""
        layers: list[DecoderLayer] = list(self.layers)  # type: ignore[arg-type]
        weights: list[Tensor] = [layer.lower.weight.detach() for layer in layers]
        return weights


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """The sine and cosine positions of Vaswani et al. (2017): (length, width), float32."""
    position = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table

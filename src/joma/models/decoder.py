"""The decoder of the JoMA paper's Fig. 6 (post-norm encoder layers, a causal mask), and a pre-norm one."""

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
    probabilities can be observed without a second computation. With ``pre_norm`` the LayerNorms stand
    before attention and MLP instead, and with ``rotary`` queries and keys are turned by their position.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float,
        *,
        pre_norm: bool = False,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.pre_norm, self.rotary = heads, pre_norm, rotary
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
        attended = self._attend(x, mask, observe)
        x = x + self.dropout(attended)
        if self.pre_norm:
            transformed: Tensor = x + self.dropout(self._transform(self.mlp_norm(x)))
            return transformed
        x = self.attention_norm(x)
        normed: Tensor = self.mlp_norm(x + self.dropout(self._transform(x)))
        return normed

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the layer attends with, of its input (batch, length, width)."""
        return self.split(self.in_projection(self.attention_norm(x) if self.pre_norm else x))

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output of ``in_projection`` -> queries, keys and values (batch, heads, length, width per head)."""
        batch, length, width = *projected.shape[:2], projected.shape[2] // 3
        parts = projected.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        return (rotate(query), rotate(key), value) if self.rotary else (query, key, value)

    def _attend(self, x: Tensor, mask: Tensor, observe: Callable[[Tensor], None] | None) -> Tensor:
        query, key, value = self.queries_keys_values(x)
        logits = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-2, -1)) + mask
        attention = torch.softmax(self.sharpen(logits), dim=-1)
        if observe is not None:
            observe(attention)
        mixed = torch.matmul(self.dropout(attention), value).transpose(1, 2).reshape(x.shape)
        attended: Tensor = self.out_projection(mixed)
        return attended

    def _transform(self, x: Tensor) -> Tensor:
        transformed: Tensor = self.upper(self.dropout(torch.relu(self.lower(x))))
        return transformed


class Decoder(LanguageModel):
    """A language model: scaled embedding, sinusoidal positions, decoder layers, output layer.

    Args:
        vocabulary_size: number of tokens.
        layers: number of decoder layers.
        width: embedding size d; hidden: width of the MLP's hidden layer; heads: attention heads.
        dropout: probability, in the positions, the attention and the MLP.
        longest: longest sequence.
        pre_norm: LayerNorm before attention and MLP and before the output, instead of after each.
        rotary: rotary positions (Su et al. 2021) in queries and keys, instead of the sinusoidal ones.

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
        pre_norm: bool = False,
        rotary: bool = False,
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
        if rotary and width // heads % 2:
            raise InputError(
                f"a head of width {width // heads} must be even (rotary positions turn pairs of its numbers)."
            )
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, hidden, dropout, pre_norm=pre_norm, rotary=rotary)
            for _ in range(layers)
        )
        self.final_norm = nn.LayerNorm(width) if pre_norm else nn.Identity()
        self.output = nn.Linear(width, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.output.weight, -0.1, 0.1)
        nn.init.zeros_(self.output.bias)
        self.positions: Tensor
        self.mask: Tensor
        positions = torch.zeros(longest, width) if rotary else sinusoidal_positions(longest, width)
        self.register_buffer("positions", positions, persistent=False)
        mask = torch.full((longest, longest), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def hidden_states(self, tokens: Tensor, observe: AttentionObserver | None = None) -> Tensor:
        """Tokens (batch, length) -> last hidden states (batch, length, width), without logits."""
        length = tokens.shape[1]
        longest = self.positions.shape[0]
        if length > longest:
            raise InputError(f"a sequence of {length} tokens is longer than the model's {longest} positions.")
        x, mask = self.embed(tokens), self.mask[:length, :length]
        for number, layer in enumerate(self.layers):
            x = layer(x, mask, None if observe is None else lambda p, n=number: observe(n, p))
        normed: Tensor = self.final_norm(x)
        return normed

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) -> what the first layer reads (batch, length, width)."""
        positions = self.positions[: tokens.shape[1]]
        x: Tensor = self.dropout(self.embedding(tokens) * math.sqrt(self.width) + positions)
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


def rotate(vectors: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of numbers of a head by its position times 10000^(-2 i / width).

    ``vectors``: (..., length, width per head), an even width.
    """
    length, width = vectors.shape[-2:]
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=vectors.device) / width)
    angle = torch.arange(length, device=vectors.device)[:, None] * frequency
    cosine, sine = angle.cos().to(vectors.dtype), angle.sin().to(vectors.dtype)
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def sinusoidal_positions(length: int, width: int) -> Tensor:
    """The sine and cosine positions of Vaswani et al. (2017): (length, width), float32."""
    position = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)
    return table

"""The network of JoMA Table 1: embedding, post-norm blocks with ReLU MLPs of 4M neurons, class output."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joma.errors import InputError
from joma.models.decoder import DecoderLayer

ActivationObserver = Callable[[int, Tensor], None]
"""Called with the layer's number and its hidden activations, (rows, positions, hidden), after the ReLU."""


class HierarchyLayer(DecoderLayer):
    """A post-norm block that can also answer for the last position alone."""

    def last_position(self, x: Tensor, bias: Tensor) -> Tensor:
        """What ``forward(x, bias)[:, -1]`` is, (rows, width), without computing the other positions.

        ``x``: (rows, positions, width); ``bias``: (rows, 1, 1, positions), added to the logits.
        """
        rows, positions, width = x.shape
        shape = (rows, -1, self.heads, width // self.heads)
        weight, offset = self.in_projection.weight, self.in_projection.bias
        query = F.linear(x[:, -1:], weight[:width], offset[:width]).view(shape).transpose(1, 2)
        keys_values = F.linear(x, weight[width:], offset[width:]).view(rows, positions, 2, *shape[2:])
        key, value = keys_values.permute(2, 0, 3, 1, 4)
        logits = torch.matmul(query * (width // self.heads) ** -0.5, key.transpose(-2, -1)) + bias
        mixed = torch.matmul(torch.softmax(logits, dim=-1), value).transpose(1, 2).reshape(rows, width)
        y = self.attention_norm(x[:, -1] + self.out_projection(mixed))
        normed: Tensor = self.mlp_norm(y + self.upper(torch.relu(self.lower(y))))
        return normed


class HierarchyNetwork(nn.Module):
    """Tokens in, class logits at the last position out. No positions: a sequence is a bag with a last token.

    Args:
        tokens: M, the padding (token M) not counted.
        classes: C; layers: blocks; width: d; heads: attention heads.
        hidden: width of the MLP's hidden layer; 4 M where None.
        causal: whether a position sees only itself and what comes before it.

    Weights start as PyTorch starts them (embedding: standard normal). There is no dropout.

    Raises:
        InputError: heads that do not divide the width, or a size below 1.
    """

    def __init__(
        self,
        tokens: int,
        classes: int,
        *,
        layers: int = 3,
        width: int = 1024,
        hidden: int | None = None,
        heads: int = 1,
        causal: bool = False,
    ) -> None:
        super().__init__()
        hidden = 4 * tokens if hidden is None else hidden
        if min(tokens, classes, layers, width, hidden, heads) < 1:
            raise InputError(
                f"HierarchyNetwork: tokens = {tokens}, classes = {classes}, layers = {layers}, "
                f"width = {width}, hidden = {hidden}, heads = {heads}; give whole numbers of at least 1."
            )
        if width % heads:
            raise InputError(
                f"HierarchyNetwork: width = {width} is not a multiple of heads = {heads}; "
                "choose heads that divide it."
            )
        self.causal = causal
        self.embedding = nn.Embedding(tokens + 1, width)
        self.blocks = nn.ModuleList(HierarchyLayer(width, heads, hidden, 0.0) for _ in range(layers))
        self.output = nn.Linear(width, classes)

    def forward(
        self,
        tokens: Tensor,
        key_bias: Tensor | None = None,
        *,
        observe: ActivationObserver | None = None,
        last_only: bool = True,
    ) -> Tensor:
        """Logits (rows, classes) of sequences ``tokens`` (rows, positions).

        Args:
            tokens: int64. key_bias: (rows, positions), added to the attention logits of each key:
                log(n) makes one key stand for n equal ones.
            observe: sees the hidden activations of every layer at every position.
            last_only: compute the last block at the last position only; the logits are the same.
        """
        positions = tokens.shape[1]
        x: Tensor = self.embedding(tokens)
        bias = x.new_zeros(1, 1, 1, positions) if key_bias is None else key_bias[:, None, None, :]
        mask = bias
        if self.causal:
            mask = bias + torch.full((positions, positions), float("-inf")).triu(1).to(x)
        blocks: list[HierarchyLayer] = list(self.blocks)  # type: ignore[arg-type]
        handles = []
        if observe is not None:
            last_only = False
            handles = [
                block.upper.register_forward_pre_hook(lambda _, inputs, n=number: observe(n, inputs[0]))
                for number, block in enumerate(blocks)
            ]
        try:
            for block in blocks[:-1]:
                x = block(x, mask)
            # The last position sees every key, causal or not.
            last = blocks[-1].last_position(x, bias) if last_only else blocks[-1](x, mask)[:, -1]
        finally:
            for handle in handles:
                handle.remove()
        logits: Tensor = self.output(last)
        return logits

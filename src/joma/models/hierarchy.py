"""The network of JoMA Table 1: embedding, post-norm blocks with ReLU MLPs of 4M neurons, class output."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joma.core.errors import InputError
from joma.models.decoder import DecoderLayer

ActivationObserver = Callable[[int, Tensor], None]
"""Called with the layer's number and its hidden activations, (rows, positions, hidden), after the ReLU."""


class HierarchyLayer(DecoderLayer):
    """A post-norm block that knows shorter ways to what ``forward`` gives, where less was asked for.

    Attention is linear in its values, and its logits are bilinear in queries and keys, so a projection may
    be moved to the side of the sum that has fewer rows.
    """

    def of_distinct_tokens(self, vectors: Tensor, index: Tensor, mask: Tensor) -> Tensor:
        """``forward(vectors[index], mask)``, (rows, positions, width), the attention's four projections
        computed once for each of the ``vectors`` (distinct, width).

        ``index``: (rows, positions) of int64; ``mask``: added to the logits of (rows, 1, queries, keys).
        """
        (distinct, width), (rows, positions) = vectors.shape, index.shape
        part = width // self.heads
        query_key, value = self.in_projection(vectors).split([2 * width, width], dim=1)
        # What each token adds to the output of the attention, head by head.
        by_head = self.out_projection.weight.view(width, self.heads, part)
        sent = torch.einsum("thp,whp->thw", value.view(distinct, self.heads, part), by_head)
        # F.embedding rather than indexing: its backward pass adds rows up without sorting them.
        placed = F.embedding(index, query_key).view(rows, positions, 2, self.heads, part)
        query, key = placed.permute(2, 0, 3, 1, 4)
        logits = torch.matmul(query * part**-0.5, key.transpose(-2, -1)) + mask
        carried = F.embedding(index, sent.flatten(1)).view(rows, positions, self.heads, width).transpose(1, 2)
        attended = torch.matmul(torch.softmax(logits, dim=-1), carried).sum(1) + self.out_projection.bias
        return self._after_attention(F.embedding(index, vectors), attended)

    def last_position(self, x: Tensor, bias: Tensor) -> Tensor:
        """What ``forward(x, bias)[:, -1]`` is, (rows, width), without projecting the other positions.

        ``x``: (rows, positions, width); ``bias``: (rows, 1, 1, positions), added to the logits.
        """
        rows, _, width = x.shape
        part = width // self.heads
        weight, offset = self.in_projection.weight, self.in_projection.bias
        of_query, of_key, of_value = weight.view(3, self.heads, part, width).unbind(0)
        last = x[:, -1]
        query = torch.einsum("rw,hpw->rhp", last, of_query) + offset[:width].view(self.heads, part)
        # The keys' own offset adds the same to every logit of a row, and softmax does not see it.
        asked = torch.einsum("rhp,hpw->rhw", query * part**-0.5, of_key)
        logits = torch.matmul(asked, x.transpose(1, 2)) + bias[:, 0]
        attended = torch.matmul(torch.softmax(logits, dim=-1), x)
        mixed = torch.einsum("rhw,hpw->rhp", attended, of_value).reshape(rows, width) + offset[2 * width :]
        return self._after_attention(last, self.out_projection(mixed))

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        y = self.attention_norm(x + attended)
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
        self.causal, self.heads = causal, heads
        self.embedding = nn.Embedding(tokens + 1, width)
        self.blocks = nn.ModuleList(HierarchyLayer(width, heads, hidden, 0.0) for _ in range(layers))
        self.output = nn.Linear(width, classes)

    def forward(
        self,
        tokens: Tensor,
        key_bias: Tensor | None = None,
        *,
        observe: ActivationObserver | None = None,
        shortened: bool = True,
    ) -> Tensor:
        """Logits (rows, classes) of sequences ``tokens`` (rows, positions).

        Args:
            tokens: int64. key_bias: (rows, positions), added to the attention logits of each key:
                log(n) makes one key stand for n equal ones.
            observe: sees the hidden activations of every layer at every position.
            shortened: project each distinct token once in the first block, and the last position alone in
                the last; the logits are the same but for rounding.
        """
        positions = tokens.shape[1]
        weight = self.embedding.weight
        bias = weight.new_zeros(1, 1, 1, positions) if key_bias is None else key_bias[:, None, None, :]
        mask = bias
        if self.causal:
            mask = bias + torch.full((positions, positions), float("-inf")).triu(1).to(weight)
        blocks: list[HierarchyLayer] = list(self.blocks)  # type: ignore[arg-type]
        handles = []
        if observe is not None:
            shortened = False
            handles = [
                block.upper.register_forward_pre_hook(lambda _, inputs, n=number: observe(n, inputs[0]))
                for number, block in enumerate(blocks)
            ]
        try:
            if shortened and len(blocks) > 1:
                distinct, index = torch.unique(tokens, return_inverse=True)
                x = blocks[0].of_distinct_tokens(self.embedding(distinct), index, mask)
            else:
                x = self.embedding(tokens)
                x = blocks[0](x, mask) if len(blocks) > 1 else x
            for block in blocks[1:-1]:
                x = block(x, mask)
            # The last position sees every key, causal or not.
            last = blocks[-1].last_position(x, bias) if shortened else blocks[-1](x, mask)[:, -1]
        finally:
            for handle in handles:
                handle.remove()
        logits: Tensor = self.output(last)
        return logits

"""Small transformers of every kind, with what each attention shows of itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from growth_study.kinds import Kind

LENGTH = 32
PATCHES, SIDE, CLASSES = 16, 4, 10
"""Patches of an image, pixels on a patch's side, and classes of images."""


@dataclass(frozen=True)
class Seen:
    """What one attention showed in one pass, per head; detached."""

    normalised_entropy: Tensor
    largest_logit: Tensor


class Attention(nn.Module):
    """Softmax attention of every kind, written out, so that each step's logits can be seen."""

    def __init__(self, kind: Kind, *, causal: bool) -> None:
        super().__init__()
        self.kind, self.causal = kind, causal
        self.size = kind.width // kind.heads
        self.query = nn.Linear(kind.width, kind.width, bias=False)
        self.key = nn.Linear(kind.width, kind.key_heads * self.size, bias=False)
        self.value = nn.Linear(kind.width, kind.key_heads * self.size, bias=False)
        self.mix = nn.Linear(kind.width, kind.width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(self.size) for _ in range(2 * kind.qk_norm))
        self.seen: Seen | None = None

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """``x``: (batch, queries, width); ``memory``: (batch, keys, width)."""
        shared = self.kind.heads // self.kind.key_heads
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        query, key, value = (
            each.view(*each.shape[:2], -1, self.size).transpose(1, 2) for each in (query, key, value)
        )
        if self.norms:
            query, key = self.norms[0](query), self.norms[1](key)
        if self.kind.rotary:
            query, key = _turn(query), _turn(key)
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        logits = query @ key.mT * self.size**-0.5
        if self.causal:
            hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(hidden, -1e9)
        attention = logits.softmax(-1)
        self.seen = self._look(logits.detach(), attention.detach())
        mixed: Tensor = self.mix((attention @ value).transpose(1, 2).flatten(2))
        return mixed

    def _look(self, logits: Tensor, attention: Tensor) -> Seen:
        keys = (logits > -1e8).sum(-1)
        entropy = torch.special.entr(attention).sum(-1)
        share = torch.where(keys > 1, entropy / keys.clamp_min(2).log(), 0).sum((0, 2))
        return Seen(share / (keys > 1).sum((0, 2)), logits.amax((0, 2, 3)))


class Feedforward(nn.Module):
    """A two-layer MLP, a gated one, or experts of which each token takes the likeliest."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        many, hidden = max(kind.experts, 1), 4 * kind.width
        self.lower = nn.Parameter(torch.randn(many, kind.width, hidden * (1 + kind.gated)) * 0.02)
        self.upper = nn.Parameter(torch.randn(many, hidden, kind.width) * 0.02)
        self.router = nn.Linear(kind.width, many, bias=False) if kind.experts else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        if self.router is None:
            return self._one(x, 0)
        weight, chosen = self.router(x).softmax(-1).max(-1)
        parts = [self._one(x, number) * (chosen == number)[..., None] for number in range(self.kind.experts)]
        return torch.stack(parts).sum(0) * weight[..., None]

    def _one(self, x: Tensor, number: int) -> Tensor:
        hidden = x @ self.lower[number]
        if self.kind.gated:
            gate, hidden = hidden.chunk(2, -1)
            return F.silu(gate) * hidden @ self.upper[number]
        return F.gelu(hidden) @ self.upper[number]


class Block(nn.Module):
    """Attention to itself, to a memory where there is one, and an MLP."""

    def __init__(self, kind: Kind, *, causal: bool, reads: bool = False) -> None:
        super().__init__()
        self.before = kind.norm == "pre"
        self.attention = Attention(kind, causal=causal)
        self.reading = Attention(kind, causal=False) if reads else None
        self.mlp = Feedforward(kind)
        self.norms = nn.ModuleList(nn.LayerNorm(kind.width) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """(batch, length, width) -> the same."""
        x = self._add(x, 0, lambda y: self.attention(y, y))
        if self.reading is not None and memory is not None:
            x = self._add(x, 1, lambda y: self.reading(y, memory))
        return self._add(x, 2, self.mlp)

    def _add(self, x: Tensor, number: int, part: object) -> Tensor:
        assert callable(part)
        norm = self.norms[number]
        out: Tensor = x + part(norm(x)) if self.before else norm(x + part(x))
        return out


class Network(nn.Module):
    """A network of a kind, and its loss on a batch."""

    def __init__(self, kind: Kind, vocabulary: int) -> None:
        super().__init__()
        self.kind = kind
        images = kind.task == "patches"
        self.embedding = (
            nn.Linear(SIDE**2, kind.width) if images else nn.Embedding(vocabulary + 1, kind.width)
        )
        self.positions = nn.Parameter(torch.randn(LENGTH, kind.width) * 0.02)
        if isinstance(self.embedding, nn.Embedding):
            nn.init.normal_(self.embedding.weight, std=0.02)
        two = kind.task == "translated"
        causal = kind.task in ("next", "translated")
        self.encoder = nn.ModuleList(Block(kind, causal=False) for _ in range(kind.layers * two))
        self.blocks = nn.ModuleList(Block(kind, causal=causal, reads=two) for _ in range(kind.layers))
        self.final = nn.LayerNorm(kind.width)
        self.output = nn.Linear(kind.width, CLASSES if images else vocabulary)
        self.hidden_token = vocabulary

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats; -100 among the targets does not count."""
        memory = None
        if self.kind.task == "translated":
            memory = self._embed(inputs)
            for block in self.encoder:
                memory = block(memory)
            inputs, targets = targets[:, :-1], targets[:, 1:]
        x = self._embed(inputs)
        for block in self.blocks:
            x = block(x, memory)
        x = self.final(x)
        x = x.mean(1) if self.kind.task == "patches" else x
        logits = self.output(x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))

    def _embed(self, inputs: Tensor) -> Tensor:
        x: Tensor = self.embedding(inputs)
        return x if self.kind.rotary else x + self.positions[: x.shape[1]]

    def attentions(self) -> list[Attention]:
        """All of them, in order."""
        return [module for module in self.modules() if isinstance(module, Attention)]

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """W_Q and W_K, the MLPs' matrices, and everything else."""
        found: dict[str, list[nn.Parameter]] = {"attention": [], "mlp": [], "rest": []}
        for name, weight in self.named_parameters():
            last = name.removesuffix(".weight").rpartition(".")[2]
            part = {"query": "attention", "key": "attention", "lower": "mlp", "upper": "mlp"}.get(
                last, "rest"
            )
            found[part].append(weight)
        return found


def _turn(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * rates
    first, second = x[..., :half], x[..., half:]
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)

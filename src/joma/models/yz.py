"""The YZ model on real text: attention layers without embeddings, in pairs of tokens, in any depth.

Scan&Snap replaces U W_V' U' by one free matrix Y and U W_Q W_K' U' by another, Z, so that a token is a
one-hot vector and a state lives in vocabulary space. Stacked, as the slides' further experiments do it:

    a_t = sum_{t' <= t} b_tt' s_t',     b_t = softmax_t'(s_t' Z s_t'')         (causal, own token included)
    f_t = unit(a_t + s_t),              s_t <- ReLU(Y' f_t),  and no ReLU on top: logits = Y' f_t

with s_t one-hot at the bottom. The sum ``+ s_t`` is the residual connection, ``unit`` (division by the
2-norm) the normalisation; both can be left out. Nothing knows positions but the causal mask.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.models.language_model import AttentionObserver, LanguageModel

STARTS = ("uniform", "zero", "identity")


class PairMatrix(nn.Module):
    """A (tokens, tokens) matrix: free, or the product ``left @ right.T`` of two (tokens, rank) factors.

    Entries start with the variance 1 / (3 tokens) of ``nn.Linear``, whichever the form.
    """

    def __init__(self, tokens: int, rank: int | None) -> None:
        super().__init__()
        self.tokens, self.rank = tokens, rank
        # Entries uniform in +-a have variance a^2/3; a sum of `rank` products of two such, rank a^4/9.
        bound = tokens**-0.5 if rank is None else (3 / (rank * tokens)) ** 0.25
        shape = (tokens, tokens if rank is None else rank)
        self.left = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.right = None if rank is None else nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    def dense(self) -> Tensor:
        """The matrix itself, (tokens, tokens)."""
        return self.left if self.right is None else self.left @ self.right.T

    def form(self, states: Tensor) -> Tensor:
        """states M states', for states (batch, length, tokens): (batch, length, length)."""
        reduced = states @ self.left
        return reduced @ (states if self.right is None else states @ self.right).transpose(-2, -1)

    def form_of_tokens(self, tokens: Tensor) -> Tensor:
        """``form`` of the one-hot vectors of ``tokens`` (batch, length), read off the matrix."""
        if self.right is None:
            return self.left[tokens.unsqueeze(2), tokens.unsqueeze(1)]
        return F.embedding(tokens, self.left) @ F.embedding(tokens, self.right).transpose(-2, -1)

    def apply_transposed(self, states: Tensor) -> Tensor:
        """M' f of each state f, (..., tokens) -> (..., tokens)."""
        reduced = states @ self.left
        return reduced if self.right is None else reduced @ self.right.T


class YZ(LanguageModel):
    """The YZ model in one or more layers; trains and is measured like ``joma.models.decoder.Decoder``.

    Args:
        vocabulary_size: M, the number of tokens.
        layers: number of attention layers.
        rank: None for free matrices of M x M; else Y and Z are products of two M x rank factors, so that
            vocabularies of thousands fit.
        residual: add a token's own state to what it attended to.
        normalised: divide by the 2-norm before decoding.
        start: ``uniform`` in +-1/sqrt(M), as ``nn.Linear``'s; ``zero`` (one layer only: with more, no
            gradient would reach any weight); ``identity`` makes the Y of all layers but the top one the unit
            matrix, so that a layer begins by passing on what it mixed (free matrices only).
        longest: longest sequence.

    Raises InputError for a size below its least, and for a start that the form does not have.
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        layers: int = 1,
        rank: int | None = None,
        residual: bool = True,
        normalised: bool = True,
        start: str = "uniform",
        longest: int = 512,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("vocabulary_size", vocabulary_size, 2),
            ("layers", layers, 1),
            ("rank", 1 if rank is None else rank, 1),
        ):
            if value < least:
                raise InputError(f"YZ: {name} = {value} is too small; give at least {least}.")
        if start not in STARTS:
            raise InputError(f"YZ: start {start!r} is none of {', '.join(STARTS)}.")
        if start == "zero" and (layers > 1 or rank is not None):
            raise InputError(
                f"YZ: start 'zero' with layers = {layers} and rank = {rank} would never leave zero; "
                "it takes one layer of free matrices."
            )
        if start == "identity" and rank is not None:
            raise InputError(f"YZ: start 'identity' needs free matrices; rank = {rank} cannot hold one.")
        self.vocabulary_size = vocabulary_size
        self.width = vocabulary_size if rank is None else rank
        self.residual, self.normalised = residual, normalised
        self.logit_matrices = nn.ModuleList(PairMatrix(vocabulary_size, rank) for _ in range(layers))
        self.value_matrices = nn.ModuleList(PairMatrix(vocabulary_size, rank) for _ in range(layers - 1))
        # The top Y, split where the training loop's fused loss takes over: hidden states of `width`,
        # then the output layer. The YZ model has no bias; the loss wants one, so it is a frozen zero.
        top = PairMatrix(vocabulary_size, rank)
        self.reduce = top.left if rank is not None else None
        self.output = nn.Linear(self.width, vocabulary_size)
        self.output.bias.requires_grad_(False).zero_()
        with torch.no_grad():
            self.output.weight.copy_(top.left.T if top.right is None else top.right)
            if start == "zero":
                self.output.weight.zero_()
                self._z(0).left.zero_()
            if start == "identity":
                for layer in range(layers - 1):
                    self._y(layer).left.copy_(torch.eye(vocabulary_size))
        self.mask: Tensor
        mask = torch.full((longest, longest), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def _z(self, layer: int) -> PairMatrix:
        matrix = self.logit_matrices[layer]
        assert isinstance(matrix, PairMatrix)
        return matrix

    def _y(self, layer: int) -> PairMatrix:
        matrix = self.value_matrices[layer]
        assert isinstance(matrix, PairMatrix)
        return matrix

    def attention_matrix(self, layer: int = 0) -> Tensor:
        """Z of that layer, (M, M): row = attending token, column = attended token (layer 0)."""
        return self._z(layer).dense()

    def decoder_matrix(self, layer: int = 0) -> Tensor:
        """Y of that layer, (M, M): row = token attended to, column = token decoded (the top layer)."""
        if layer < len(self.value_matrices):
            return self._y(layer).dense()
        return self.output.weight.T if self.reduce is None else self.reduce @ self.output.weight.T

    def hidden_states(self, tokens: Tensor, observe: AttentionObserver | None = None) -> Tensor:
        """Tokens (batch, length) -> what the output layer reads, (batch, length, width), without logits.

        Free matrices: f of the top layer itself (width M); low rank: f times Y's left factor (width rank).
        """
        length, longest = tokens.shape[1], self.mask.shape[0]
        if length > longest:
            raise InputError(f"a sequence of {length} tokens is longer than the model's {longest} positions.")
        mask = self.mask[:length, :length]
        weights = self._weights(self._z(0).form_of_tokens(tokens) + mask, observe, 0)
        # One-hot states: what is attended to is the weight that each token of the vocabulary gets.
        shape = (*tokens.shape, self.vocabulary_size)
        mixed = weights.new_zeros(shape).scatter_add(2, tokens.unsqueeze(1).expand_as(weights), weights)
        features = self._normalise(mixed)
        for layer in range(1, len(self.logit_matrices)):
            states = torch.relu(self._y(layer - 1).apply_transposed(features))
            weights = self._weights(self._z(layer).form(states) + mask, observe, layer)
            features = self._normalise(weights @ states)
        return features if self.reduce is None else features @ self.reduce

    def _weights(self, scores: Tensor, observe: AttentionObserver | None, layer: int) -> Tensor:
        """Attention, with the residual connection as one more unit of weight on the own state."""
        attention = torch.softmax(scores, dim=-1)
        if observe is not None:
            observe(layer, attention.unsqueeze(1))
        return attention + torch.eye(attention.shape[-1]).to(attention) if self.residual else attention

    def _normalise(self, mixed: Tensor) -> Tensor:
        return F.normalize(mixed, dim=-1) if self.normalised else mixed

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) -> logits (batch, length, vocabulary)."""
        logits: Tensor = self.output(self.hidden_states(tokens))
        return logits

    def lower_mlp_weights(self) -> list[Tensor]:
        """None: the model has no MLP. (The measurements of a decoder ask for them.)"""
        return []

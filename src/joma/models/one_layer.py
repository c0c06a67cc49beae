"""One attention layer on Scan&Snap's data: with free Y and Z, or with the embeddings they stand for.

Scan&Snap trains Y = U W_V' U' and Z = U W_Q W_K' U' as if they were free matrices. Both models here read the
same thing, the frequencies of a sequence's contextual tokens and its last token m (Lemma 2: at every
length, a sequence enters by these alone), and compute the same function of Y and Z,

    c = frequencies * exp(z_m), normalised to sum one;     logits = Y' c / |c|_2,

so what differs is what gradient descent does to it. The slides' 1/sqrt(d) is absorbed in W_Q. All float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.data.next_token import NextTokenData


class OneLayer(nn.Module, ABC):
    """The function of Y and Z; subclasses say what these are made of. M tokens in all."""

    @abstractmethod
    def attention_matrix(self) -> Tensor:
        """Z, (M, M): row = last token, column = contextual token."""

    @abstractmethod
    def decoder_matrix(self) -> Tensor:
        """Y, (M, M): row = contextual token, column = next token."""

    def mass(self, frequencies: Tensor, last: Tensor) -> Tensor:
        """c, (batch, M): the attention that each token gets in sequences that end in ``last`` (batch,).

        ``frequencies`` (batch, M) are token counts or P(l|n), in any scale; a row must not be all zero.
        """
        # log 0 = -inf is what an absent token should have
        return torch.softmax(self.attention_matrix()[last] + frequencies.log(), dim=-1)

    def forward(self, frequencies: Tensor, last: Tensor) -> Tensor:
        """Logits of the next token, (batch, M)."""
        return F.normalize(self.mass(frequencies, last), dim=-1) @ self.decoder_matrix()


class FreePairs(OneLayer):
    """Scan&Snap's model: Y and Z themselves are trained, from zero."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.zeros(tokens, tokens, dtype=torch.float64))
        self.z = nn.Parameter(torch.zeros(tokens, tokens, dtype=torch.float64))

    def attention_matrix(self) -> Tensor:
        """Z."""
        return self.z

    def decoder_matrix(self) -> Tensor:
        """Y."""
        return self.y


class EmbeddedDecoder(OneLayer):
    """The ordinary parametrisation: Y = U W_V' U', Z = U W_Q W_K' U' (or U A U', with ``factored=False``).

    Args:
        tokens: M.
        width: d, the embedding size.
        factored: W_Q and W_K, or their product A as one matrix that starts at zero.
        train_embeddings: whether U is a parameter.
        scale: the entries of W_Q and W_K start normal with deviation scale / sqrt(d).

    U starts orthonormal where it fits (d >= M), else normal with deviation 1/sqrt(d); W_V starts at zero,
    so that Y does, as in the theory. Random numbers are torch's global ones.
    Raises InputError for sizes below 1 and a scale that is not positive.
    """

    def __init__(
        self,
        tokens: int,
        width: int,
        *,
        factored: bool = True,
        train_embeddings: bool = True,
        scale: float = 0.5**0.5,
    ) -> None:
        super().__init__()
        if tokens < 2 or width < 1 or not scale > 0:
            raise InputError(
                f"Embedded: tokens = {tokens}, width = {width}, scale = {scale} cannot be; give at least 2 "
                "tokens, a width of at least 1 and a positive scale."
            )
        embeddings = _normal(tokens, width) / width**0.5
        if width >= tokens:
            embeddings = torch.linalg.qr(_normal(width, tokens)).Q.T.contiguous()
        self.embeddings = nn.Parameter(embeddings, requires_grad=train_embeddings)
        self.w_v = nn.Parameter(torch.zeros(width, width, dtype=torch.float64))
        spread = scale / width**0.5
        self.w_q = nn.Parameter(spread * _normal(width, width) if factored else torch.zeros_like(self.w_v))
        self.w_k = nn.Parameter(spread * _normal(width, width)) if factored else None

    def attention_matrix(self) -> Tensor:
        """U W_Q W_K' U'."""
        keys = self.embeddings if self.w_k is None else self.embeddings @ self.w_k
        return (self.embeddings @ self.w_q) @ keys.T

    def decoder_matrix(self) -> Tensor:
        """U W_V' U'."""
        return self.embeddings @ self.w_v.T @ self.embeddings.T


def _normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, dtype=torch.float64)


class Population:
    """Scan&Snap's data in the limit of long sequences, as one weighted batch with a row for each class.

    Tokens are numbered contextual, last, next: C + L + K in all.
    """

    def __init__(self, data: NextTokenData) -> None:
        contextual, lasts, classes = data.contextual_tokens, data.last_tokens, data.classes
        self.tokens = contextual + lasts + classes
        self.frequencies = torch.zeros(classes, self.tokens, dtype=torch.float64)
        self.frequencies[:, :contextual] = torch.from_numpy(data.conditional)
        self.last = contextual + torch.from_numpy(data.last_of_next)
        self.following = contextual + lasts + torch.arange(classes)
        self.prior = torch.from_numpy(data.prior)

    def loss(self, model: OneLayer) -> Tensor:
        """Expected cross-entropy, nats."""
        losses = F.cross_entropy(model(self.frequencies, self.last), self.following, reduction="none")
        return (self.prior * losses).sum()

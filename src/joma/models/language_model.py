"""What the training loop asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

AttentionObserver = Callable[[int, Tensor], None]
"""Called with the layer's number and its attention probabilities (batch, heads, length, length)."""


class LanguageModel(nn.Module, ABC):
    """A model that predicts the next token from hidden states through one linear output layer.

    Hidden states and output layer are apart, so that training can fuse the output with its loss and
    a measurement of the attention can leave the logits out.
    """

    width: int
    """Size of a hidden state."""
    output: nn.Linear
    """Hidden state -> logits over the vocabulary."""

    @abstractmethod
    def hidden_states(self, tokens: Tensor, observe: AttentionObserver | None = None) -> Tensor:
        """Tokens (batch, length) -> last hidden states (batch, length, width), without logits."""

    @abstractmethod
    def lower_mlp_weights(self) -> list[Tensor]:
        """The lower MLP layer's weight of each layer that has one, (hidden, width)."""

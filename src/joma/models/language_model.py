"""What the training loop asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from joma.core.errors import InputError

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

    def queries_and_keys(self) -> list[Tensor]:
        """W_Q and W_K and their biases, of each layer: views into the parameters, without gradients.

        Raises:
            InputError: a model whose W_Q and W_K cannot be told from the rest.
        """
        raise InputError(
            f"{type(self).__name__} has no learning rate of its own for W_Q and W_K; leave it at 1."
        )

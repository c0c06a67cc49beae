"""What is measured of a decoder on held-out windows: its top layer's entropy, its losses by kind of token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from joma.data.text import TokenText, validation_windows
from joma.experiments.beyond.why_bounce import WhyBounce
from joma.experiments.shared.decoder_attention import evaluation
from joma.instruments.branch.entropy import attention_calls
from joma.measures.attention.entropy import attention_entropy
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder

FREQUENCIES = ("frequent", "middle", "rare")
"""Thirds of the text, by how often their tokens are."""
PLACES = ("early", "central", "late")
"""Thirds of a window."""
EVERYWHERE = "all"


class HeldOutWindows:
    """Held-out windows, and which third of the text and of the window every token belongs to."""

    def __init__(self, settings: WhyBounce, text: TokenText) -> None:
        self.inputs, self.targets = validation_windows(
            text.validation, length=settings.length, most=settings.windows
        )
        counts = np.bincount(text.training, minlength=text.vocabulary_size)
        order = np.argsort(-counts, kind="stable")
        before = np.cumsum(counts[order]) - counts[order]
        thirds = np.empty(len(counts), dtype=np.int64)
        thirds[order] = np.minimum(3 * before // max(counts.sum(), 1), 2)
        self.third_of = torch.from_numpy(thirds)

    def top_entropies(self, model: Decoder) -> Tensor:
        """Entropy (windows, heads, length), nats, of the top layer's attention; it can be differentiated."""
        with evaluation(model), attention_calls(model) as calls:
            model.hidden_states(self.inputs)
        return attention_entropy(**calls[-1], differentiable=True).entropy

    @torch.no_grad()
    def entropies(self, model: Decoder) -> Tensor:
        """The same without a gradient, of the probabilities as they are."""
        seen: dict[int, Tensor] = {}
        with evaluation(model):
            model.hidden_states(self.inputs, lambda layer, p: seen.update({layer: p}))
        return entropy_of_probabilities(seen[len(model.layers) - 1])

    def mean_entropy(self, model: Decoder) -> float:
        """The mean entropy of the top layer's attention over all rows, nats."""
        return float(self.entropies(model).mean(dtype=torch.float64))

    @torch.no_grad()
    def top_logits(self, model: Decoder) -> Tensor:
        """The top layer's logits (windows, heads, length, length), -inf where a query does not see."""
        with evaluation(model), attention_calls(model) as calls:
            model.hidden_states(self.inputs)
        query, key = calls[-1]["query"], calls[-1]["key"]
        logits: Tensor = query @ key.mT * query.shape[-1] ** -0.5
        return logits.masked_fill(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1), -torch.inf)

    @torch.no_grad()
    def measure(self, model: Decoder) -> dict[str, float]:
        """Entropy, that of queries of each frequency, and the losses by kind of target, in nats."""
        entropy = self.entropies(model).mean(1)
        kinds = self.third_of[self.inputs]
        found = {"entropy": float(entropy.mean(dtype=torch.float64))}
        found |= {
            f"entropy, {name}": float(entropy[kinds == number].mean(dtype=torch.float64))
            for number, name in enumerate(FREQUENCIES)
        }
        with evaluation(model):
            each = losses_of_tokens(model(self.inputs), self.targets)
        return found | self.losses(each, self.targets, "held-out")

    def losses(self, each: Tensor, targets: Tensor, text: str) -> dict[str, float]:
        """Mean loss by kind of target, from that of every token (windows, length)."""
        place = torch.arange(targets.shape[1]) * 3 // targets.shape[1]
        kinds = self.third_of[targets]
        chosen = {EVERYWHERE: torch.ones_like(targets, dtype=torch.bool)}
        chosen |= {name: kinds == number for number, name in enumerate(FREQUENCIES)}
        chosen |= {name: (place == number).expand_as(targets) for number, name in enumerate(PLACES)}
        return {
            f"{text}, {name}": float(each.detach()[which].mean(dtype=torch.float64))
            for name, which in chosen.items()
        }


def losses_of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of every token (windows, length), nats."""
    each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape)

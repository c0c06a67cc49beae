"""What is measured of a decoder during training: loss, attention entropy, stable rank."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.data.text import TokenText, validation_windows
from joma.measures.attention.statistics import ATTENTION_ENTROPY
from joma.measures.entropy import entropy_of_probabilities
from joma.measures.ranks.stable_rank import stable_rank_estimate
from joma.models.language_model import LanguageModel
from joma.training.checkpoint import Row

_TOKENS_AT_ONCE = 7000
_LOGITS_AT_ONCE = 2**22


class HeldOutText:
    """Windows of the validation text, ready to measure a decoder on."""

    def __init__(
        self, text: TokenText, *, length: int, most_windows: int | None = None, device: str = "cpu"
    ) -> None:
        windows = validation_windows(text.validation, length=length, most=most_windows)
        self.inputs, self.targets = (tokens.to(device) for tokens in windows)

    def _chunks(self) -> list[tuple[Tensor, Tensor]]:
        size = max(1, _TOKENS_AT_ONCE // self.inputs.shape[1])
        return list(zip(torch.split(self.inputs, size), torch.split(self.targets, size), strict=True))

    @torch.no_grad()
    def measure(self, model: LanguageModel, step: int, *, with_loss: bool = True) -> list[Row]:
        """Rows of attention entropy (per layer and head), stable rank (per layer), validation loss.

        The entropy is the mean over all windows and all their causal rows, in nats; without
        ``with_loss`` the logits, which cost more than all else, are not computed.
        """
        sums: dict[int, Tensor] = {}

        def observe(layer: int, attention: Tensor) -> None:
            total = entropy_of_probabilities(attention).sum(dim=(0, 2), dtype=torch.float64)
            sums[layer] = sums.get(layer, torch.zeros_like(total)) + total

        loss = 0.0
        for inputs, targets in self._chunks():
            hidden = model.hidden_states(inputs, observe)
            if with_loss:
                loss += _summed_loss(model, hidden.flatten(0, 1), targets.flatten())
        rows = [
            _row(step, ATTENTION_ENTROPY, value / self.inputs.numel(), "nats", layer, head)
            for layer, heads in sorted(sums.items())
            for head, value in enumerate(heads.tolist())
        ]
        rows += [
            _row(step, "stable_rank", stable_rank_estimate(weight).value, "", layer)
            for layer, weight in enumerate(model.lower_mlp_weights())
        ]
        if with_loss:
            rows.append(_row(step, "validation_loss", loss / self.targets.numel(), "nats"))
        return rows


def _summed_loss(model: LanguageModel, hidden: Tensor, targets: Tensor) -> float:
    """Cross-entropy summed over tokens, with a bounded number of logits at once."""
    size = max(1, _LOGITS_AT_ONCE // model.output.out_features)
    return sum(
        float(torch.nn.functional.cross_entropy(model.output(part), target, reduction="sum"))
        for part, target in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    )


def _row(
    step: int, metric: str, value: float, unit: str, layer: int | None = None, head: int | None = None
) -> Row:
    return {"step": step, "layer": layer, "head": head, "metric": metric, "value": value, "unit": unit}

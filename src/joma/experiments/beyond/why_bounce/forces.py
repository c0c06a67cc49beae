"""Which parameters move the entropy: its gradient times the update, summed along training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from joma.experiments.beyond.why_bounce.held_out import HeldOutWindows
from joma.experiments.beyond.why_bounce.sets import parameter_sets
from joma.instruments.branch.interventions import Intervention
from joma.models.decoder import Decoder


class Forces:
    """Divides the entropy's change among sets of parameters, to first order along what they moved.

    The gradient is taken at the midpoint of the move, so that what is left over is of third order in it.
    """

    def __init__(self, held_out: HeldOutWindows, model: Decoder) -> None:
        self.held_out = held_out
        sets = parameter_sets(model)
        self.parts = {name: Intervention("", "freeze", one).parts(model) for name, one in sets.items()}
        self.between = copy.deepcopy(model).eval()
        self.last: dict[str, Tensor] = {}
        self.changes: list[dict[str, float]] = []
        """Of every move: set -> nats."""

    def advance(self, model: Decoder) -> None:
        """Divide what the updates since the last call did."""
        now = {name: one.detach().clone() for name, one in model.named_parameters()}
        if self.last:
            self.changes.append(self._divide(now))
        self.last = now

    def _divide(self, now: dict[str, Tensor]) -> dict[str, float]:
        named = dict(self.between.named_parameters())
        with torch.no_grad():
            for name, one in named.items():
                one.copy_((self.last[name] + now[name]) / 2)
        entropy = self.held_out.top_entropies(self.between).mean(dtype=torch.float64)
        slopes = torch.autograd.grad(entropy, list(named.values()), allow_unused=True)
        gains = {
            name: slope * (now[name] - self.last[name])
            for name, slope in zip(named, slopes, strict=True)
            if slope is not None
        }
        return {
            name: sum(
                float(part.rows_of(gains[part.name]).sum(dtype=torch.float64))
                for part in parts
                if part.name in gains
            )
            for name, parts in self.parts.items()
        }

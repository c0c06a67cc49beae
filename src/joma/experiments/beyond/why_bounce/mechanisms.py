"""What the candidate mechanisms predict, measured on the states that one training kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from joma.experiments.beyond.why_bounce.held_out import HeldOutWindows
from joma.experiments.beyond.why_bounce.sets import parameter_sets, put
from joma.instruments.branch.training import State
from joma.measures.entropy import entropy_of_logits
from joma.models.decoder import Decoder

SALIENT = 0.5
"""Of a row's attention, that its fewest salient keys hold."""


@dataclass(frozen=True)
class Stages:
    """A decoder at its dip and at the end, put together at will."""

    model: Decoder
    held_out: HeldOutWindows
    state: State
    dip: int
    last: tuple[int, ...]
    """The steps that are the end."""

    def entropy(self, base: int, other: int | None = None, patterns: tuple[str, ...] = ()) -> float:
        """Of the decoder at step ``base``, with the named parameters as they were at step ``other``."""
        put(self.model, self.state, base)
        if other is not None:
            put(self.model, self.state, other, patterns)
        return self.held_out.mean_entropy(self.model)

    def end(self) -> float:
        """The mean entropy of the end, nats."""
        return float(np.mean([self.entropy(step) for step in self.last]))

    def exchange(self, patterns: tuple[str, ...]) -> tuple[float, float]:
        """Shares of the rise: lost with the dip's values at the end, brought by the end's at the dip."""
        low = self.entropy(self.dip)
        rise = self.end() - low
        put_back = np.mean([self.entropy(step, self.dip, patterns) for step in self.last])
        brought = np.mean([self.entropy(self.dip, step, patterns) for step in self.last])
        return float((self.end() - put_back) / rise), float((brought - low) / rise)

    def exchanges(self) -> list[tuple[str, float, float]]:
        """Each set with both shares."""
        sets = parameter_sets(self.model)
        return [(name, *self.exchange(patterns)) for name, patterns in sets.items()]

    def at_once(self) -> float:
        """The entropy's gradient at the dip times the whole change of the parameters until the end, nats."""
        put(self.model, self.state, self.dip)
        named = dict(self.model.named_parameters())
        entropy = self.held_out.top_entropies(self.model).mean(dtype=torch.float64)
        slopes = torch.autograd.grad(entropy, list(named.values()), allow_unused=True)
        kept, begin = self.state.earlier, self.state.earlier[self.dip]
        return float(
            sum(
                (slope * (torch.stack([kept[step][name] for step in self.last]).mean(0) - begin[name])).sum()
                for name, slope in zip(named, slopes, strict=True)
                if slope is not None
            )
        )

    def scale_share(self) -> tuple[float, float]:
        """Share of the rise lost with logits scaled to the dip's spread; the end's spread over the dip's."""
        low, end = self.entropy(self.dip), self.end()
        spread = _spread(self._logits(self.dip))
        scaled, ratios = [], []
        for step in self.last:
            logits = self._logits(step)
            ratios.append(_spread(logits) / spread)
            scaled.append(float(entropy_of_logits(logits / ratios[-1]).mean(dtype=torch.float64)))
        return float((end - np.mean(scaled)) / (end - low)), float(np.mean(ratios))

    def average_share(self) -> float:
        """How much less entropy the mean of the last weights has than they have, over the rise."""
        low, end = self.entropy(self.dip), self.end()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(torch.stack([self.state.earlier[step][name] for step in self.last]).mean(0))
        return float((end - self.held_out.mean_entropy(self.model)) / (end - low))

    def mass_lost(self) -> tuple[float, float]:
        """Attention that salient keys lose: of the dip until the end, of the end back to the dip."""
        at_dip = self._attention(self.dip)
        lost, back = [], []
        for step in self.last:
            at_end = self._attention(step)
            lost.append(_mass(at_dip, _salient(at_dip)) - _mass(at_end, _salient(at_dip)))
            back.append(_mass(at_end, _salient(at_end)) - _mass(at_dip, _salient(at_end)))
        return float(np.mean(lost)), float(np.mean(back))

    def _logits(self, step: int) -> Tensor:
        put(self.model, self.state, step)
        return self.held_out.top_logits(self.model)

    def _attention(self, step: int) -> Tensor:
        return self._logits(step).softmax(-1)


def _spread(logits: Tensor) -> float:
    """Root mean square over rows of the deviation of the visible logits of a row."""
    seen = logits.isfinite()
    values = logits.masked_fill(~seen, 0.0).double()
    count = seen.sum(-1, keepdim=True)
    mean = values.sum(-1, keepdim=True) / count
    squares = ((values - mean).square() * seen).sum(-1, keepdim=True) / count
    return float(squares.mean().sqrt())


def _salient(attention: Tensor) -> Tensor:
    """The fewest keys of each row that hold at least ``SALIENT`` of its attention, as a mask."""
    ordered, places = attention.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(attention, dtype=torch.bool).scatter(-1, places, before < SALIENT)


def _mass(attention: Tensor, keys: Tensor) -> float:
    """The attention of these keys, mean over rows that see at least two."""
    return float((attention * keys).sum(-1)[..., 1:].mean(dtype=torch.float64))

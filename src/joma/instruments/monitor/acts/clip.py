"""QK-clip: W_Q and W_K of a head whose logits are too large are scaled down, and nothing else.

A head's largest logit S beyond the limit T is brought to T by the factor T / S (Kimi K2, arXiv 2507.20534,
"MuonClip"): the square root of it on W_Q and on W_K of the head, with their biases. Where several query heads
share the keys, the factor is on the head's queries alone, so that no other head is touched. Largest logits
come from a look at the step, which is exact and forms no matrix of all rows and keys.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from joma.instruments.monitor.alarms.messages import Entry, Message, place
from joma.instruments.monitor.measuring.products import QueryKey, Rows

Head = tuple[str, int]
"""Module and number."""
_TOLD = 0.8
"""Factor from which on it must show at the next look."""


@dataclass
class Clip:
    """Clips the heads of a model, step by step.

    Args:
        limit: largest logit that is left alone.
        products: where queries and keys stand.
    """

    limit: float
    products: Sequence[QueryKey]
    useless: dict[Head, str] = field(default_factory=dict)
    """Heads that clipping does not help, and why."""
    _tried: dict[Head, tuple[float, float]] = field(default_factory=dict)
    """Of each head clipped at the last look its largest logit there, and the factor."""

    def apply(self, step: int, logits: Mapping[Head, float]) -> list[Message]:
        """Clip what this step's largest logits say; what was done, one message for all heads.

        Args:
            step: that was looked at; the weights are those after it.
            logits: of each head that was seen.
        """
        told = self._check_effect(step, logits)
        clipped: list[tuple[QueryKey, int, float, float]] = []
        by_module = {one.place.module: one for one in self.products}
        for (module, head), logit in logits.items():
            if math.isfinite(logit) and logit > self.limit and (module, head) not in self.useless:
                if (one := by_module.get(module)) is None:
                    continue
                factor = self.limit / logit
                scale_head(one, head, factor)
                self._tried[module, head] = logit, factor
                clipped.append((one, head, logit, factor))
        if clipped:
            worst, head, logit, factor = min(clipped, key=lambda entry: entry[3])
            where = self._where(worst, head)
            others = f", and of {len(clipped) - 1} more heads likewise" if len(clipped) > 1 else ""
            told.append(
                act_message(
                    step,
                    "qk_clip",
                    f"queries and keys of {where} were scaled so that its largest logit {logit:.3g} becomes "
                    f"{self.limit:g}{others}",
                )
            )
        return told

    def _check_effect(self, step: int, logits: Mapping[Head, float]) -> list[Message]:
        """Take back what a clip did where the logits did not follow."""
        tried, self._tried = self._tried, {}
        by_module = {one.place.module: one for one in self.products}
        told = []
        for (module, head), (logit, factor) in tried.items():
            now = logits.get((module, head), math.nan)
            if factor <= _TOLD and now > logit * (1 + factor) / 2:
                one = by_module[module]
                scale_head(one, head, 1 / factor)
                self.useless[module, head] = "its logits do not follow its weights"
                told.append(
                    act_message(
                        step,
                        "qk_clip",
                        f"it was taken back for {self._where(one, head)}, whose logits did not follow its "
                        "weights (queries and keys are normalised, or a bias makes most of the logits)",
                    )
                )
        return told

    def _where(self, one: QueryKey, head: int) -> str:
        entries = [
            Entry("", other.place.module, 0, other.place.layer, 0, 0.0, other.place.stack)
            for other in self.products
        ]
        own = Entry("", one.place.module, 0, one.place.layer, head, 0.0, one.place.stack)
        return place(own, entries)


def scale_head(one: QueryKey, head: int, factor: float) -> None:
    """Multiply all logits of a head by a factor, in its weights; no other head's change."""
    shared = one.key_heads != one.place.heads
    by_part = [(one.query, one.place.heads, factor if shared else math.sqrt(factor))]
    if not shared:
        by_part.append((one.key, one.key_heads, math.sqrt(factor)))
    with torch.no_grad():
        for rows, heads, scale in by_part:
            for tensor in _of_head(rows, heads, head):
                tensor.mul_(scale)


def _of_head(rows: Rows, heads: int, head: int) -> list[Tensor]:
    per_group = heads // rows.piece.groups
    at = head // per_group, head % per_group
    bias = rows.bias(heads)
    return [rows.heads(heads)[at], *([] if bias is None else [bias[at]])]


def why_not(one: QueryKey, products: Sequence[QueryKey]) -> str:
    """Why the queries and keys of an attention must not be clipped; empty where they may be."""
    counts = Counter(id(other.query.parameter()) for other in products)
    if one.place.calls > 1 or counts[id(one.query.parameter())] > 1:
        return "its weights are shared by several attentions, and a clip for one would change the others"
    if not (one.query.parameter().requires_grad and one.key.parameter().requires_grad):
        return "its queries or keys are frozen"
    return ""


def act_message(step: int, name: str, what: str) -> Message:
    """The record of an act."""
    return Message(step, "act", name, name, what, step, "an act of the monitor")

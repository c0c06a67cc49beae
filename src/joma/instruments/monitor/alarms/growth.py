"""The growth of W_Q^T W_K between looks: which head, since when, and where that leads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.instruments.monitor.alarms.messages import LARGE_LOGIT, Entry, Kind, Message, place, seen_in
from joma.instruments.monitor.measuring.rows import LOG_NORM
from joma.measures.change.growth import WINDOW, Forecast, Growth, GrowthState, add_reading, forecast_crossing

Place = tuple[str, int, str, int]
"""Stack, layer, module and head."""
_REARMED = 0.5
"""Score below which growth that was reported is over."""


@dataclass
class GrowthAlarm:
    """Fed with one reading after the other; tells a growth once, and again after it has ended."""

    kind: Kind = "not judged"
    """What growth is reported as: an alarm where that was asked for, or healthy runs set the level."""
    level: float = 1.0
    """Score from which on growth is reported; another one where healthy runs set it."""
    level_sure: str = ""
    state: GrowthState = field(default_factory=GrowthState)
    raised: int | None = None
    quiet: list[int] = field(default_factory=list)
    """The last step at which each head's rise was small."""
    logits: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of each head the step of its last look, and its largest logit there."""
    norms: dict[str, float] = field(default_factory=dict)
    """ln sigma_1 of each head at that look."""
    attended: list[list[Any]] = field(default_factory=list)
    """Where attentions were seen, so that a run that goes on need not look first."""
    largest: float = 0.0
    """The largest score of the run so far."""

    def look(self, rows: pd.DataFrame) -> None:
        """Keep the largest logit of each head that a look saw."""
        own = rows[rows["metric"] == "largest_logit"]
        for row in seen_in(own):
            key = f"{row.module} {row.head}"
            self.logits[key] = int(own["step"].iloc[0]), row.value
            self.norms.pop(key, None)

    def reading(self, step: int, places: Sequence[Place], values: NDArray[np.float64]) -> list[Message]:
        """The messages of one reading."""
        keys = [f"{module} {head}" for _, _, module, head in places]
        for key, value in zip(keys, values.tolist(), strict=True):
            if key in self.logits and key not in self.norms and math.isfinite(value):
                self.norms[key] = value
        if len(self.quiet) != len(values):
            self.state, self.quiet = GrowthState(), [step] * len(values)
        self.state, growth = add_reading(self.state, step, values)
        small = max(growth.usual if math.isfinite(growth.usual) else 0.0, 0.1)
        self.quiet = [
            step if rise <= small else at for at, rise in zip(self.quiet, growth.rises, strict=True)
        ]
        score = growth.score if math.isfinite(growth.score) else 0.0
        self.largest = max(self.largest, score)
        if self.raised is not None:
            self.raised = None if score < _REARMED * self.level else self.raised
            return []
        if score < self.level or (self.level != 1 and score == self.level):
            return []
        self.raised = step
        return [self._message(growth, places, keys[growth.head], float(values[growth.head]))]

    def _message(self, growth: Growth, places: Sequence[Place], key: str, value: float) -> Message:
        entries = [
            Entry(LOG_NORM, module, 0, layer, head, 0.0, stack) for stack, layer, module, head in places
        ]
        where = place(entries[growth.head], entries)
        usual = growth.usual if math.isfinite(growth.usual) else 0.0
        what = (
            f"the spectral norm of W_Q^T W_K grew {math.exp(growth.rise):.2f}-fold in {WINDOW} steps "
            f"(usual in this run: {math.exp(usual):.2f}-fold)"
        )
        sure = self.level_sure or (
            "growth that this run had not shown; no probability is claimed: what the rule is worth was "
            "counted on few networks, docs/growth.md"
        )
        if (ahead := self._forecast(growth, key, value)) is not None:
            what += f"; {ahead}"
        since = self.quiet[growth.head]
        return Message(growth.step, self.kind, where, LOG_NORM, what, since, sure)

    def _forecast(self, growth: Growth, key: str, value: float) -> str | None:
        """Where it leads: the head's last largest logit, grown with sigma_1 since."""
        if key not in self.logits or key not in self.norms:
            return None
        logit = self.logits[key][1] * math.exp(value - self.norms[key])
        found = forecast_crossing(growth.step, logit, LARGE_LOGIT, growth.rate)
        return None if found is None or not math.isfinite(found.high) else forecast_words(found, growth.step)

    def renew(self) -> None:
        """Learn the past anew."""
        self.state, self.raised, self.quiet = GrowthState(), None, []

    def as_state(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        state = self.state
        return {
            "steps": list(state.steps),
            "values": [values.tolist() for values in state.values],
            "waiting": [list(one) for one in state.waiting],
            "usual": state.usual,
            "first": state.first,
            "raised": self.raised,
            "quiet": self.quiet,
            "logits": {key: list(pair) for key, pair in self.logits.items()},
            "norms": self.norms,
            "attended": self.attended,
            "largest": self.largest,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what ``as_state`` gave."""
        self.state = GrowthState(
            tuple(state["steps"]),
            tuple(np.array(values, dtype=float) for values in state["values"]),
            tuple((int(step), float(rise)) for step, rise in state["waiting"]),
            float(state["usual"]),
            int(state["first"]),
        )
        self.raised, self.quiet = state["raised"], [int(step) for step in state["quiet"]]
        self.logits = {str(key): (int(step), float(value)) for key, (step, value) in state["logits"].items()}
        self.norms = {str(key): float(value) for key, value in state["norms"].items()}
        self.attended = [list(one) for one in state["attended"]]
        self.largest = float(state["largest"])


def forecast_words(found: Forecast, step: int) -> str:
    """``at this rate its largest logit reaches 100 by step 1,840 (1,620 to 2,300)``."""
    if found.at <= step:
        return f"its largest logit has reached {LARGE_LOGIT:g}"
    return (
        f"at this rate its largest logit reaches {LARGE_LOGIT:g} by step {found.at:,.0f} "
        f"({found.low:,.0f} to {found.high:,.0f})"
    )

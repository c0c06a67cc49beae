"""The alarm: has this run's attention, residual stream or loss changed against its own past?

Per head the logit of normalised entropy and the logarithm of the largest logit, per block the logarithm of
the residual's root mean square: each becomes winsorised residuals, and one e-detector, averaged over all of
them in both directions, bounds the probability that a healthy run ever alarms. The loss has a CUSUM at every
step beside it. Where the run itself drifts or fluctuates more than the bound assumes, no probability is
claimed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.measures.change.e_detector import DRIFT, VARIANCE, Evidence, gathered, threshold
from joma.measures.change.residuals import Past, renewed
from joma.probes.live.messages import Message, place, whole

LEARNING = 20
"""Looks that only teach what this run's own past is."""
_STREAMS = ("normalised_entropy", "largest_logit", "residual_rms")
_NAMES = {
    "normalised_entropy": "attention_entropy",
    "largest_logit": "largest_logit",
    "residual_rms": "residual_rms",
}
_LOSS_WINDOW, _LOSS_THRESHOLD, _LOSS_SLACK = 200, 6.0, 1.0
_EDGE = 1e-6


@dataclass
class ChangeAlarm:
    """Fed with one look after the other; says at most one alarm until it is armed again.

    Args:
        looks: looks planned for the whole run; the bound holds for so many.
        alpha: probability that a healthy run alarms at all.
    """

    looks: int
    alpha: float
    keys: list[tuple[str, str, int, int]] = field(default_factory=list)
    """(metric, module, call, head) of each series; fixed by the first look."""
    past: Past = field(default_factory=lambda: Past.empty(0))
    evidence: Evidence = field(default_factory=lambda: Evidence.none(0))
    quiet: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    """Last step at which each series, falling and rising, was no farther out than the bound allows."""
    seen: int = 0
    armed_at: int | None = None
    raised: int | None = None

    def look(self, table: pd.DataFrame) -> list[Message]:
        """The messages of one step's table, as :class:`joma.probes.live.monitor.Monitor` makes it."""
        rows = table[table["metric"].isin(_STREAMS)]
        if rows.empty:
            return []
        step = int(rows["step"].iloc[0])
        values = _series(rows)
        if not self.keys:
            self.keys = list(values)
            self.past, self.evidence = Past.empty(len(values)), Evidence.none(len(values))
            self.quiet = np.full((2, len(values)), step, dtype=np.int64)
        row = np.array([values.get(key, np.nan) for key in self.keys])
        self.past, residual = renewed(self.past, row, learning=LEARNING)
        self.seen += 1
        if self.seen <= LEARNING:
            return []
        if self.armed_at is None:
            self.armed_at = step
        self.evidence = gathered(self.evidence, residual)
        self.quiet[np.stack([-residual, residual]) <= DRIFT] = step
        if self.raised is not None or self.evidence.total() < threshold(self.looks, self.alpha):
            return []
        self.raised = step
        return [self._message(step, rows)]

    def invalid(self) -> str:
        """Why the bound is not claimed for this run so far; empty where it is."""
        drift = np.abs(self.past.mean)
        variance = self.past.long_run_variance()
        ready = self.past.known >= 2 * LEARNING
        if not ready.any():
            return ""
        worst, widest = float(drift[ready].max()), float(np.nanmax(np.r_[0.0, variance[ready]]))
        if worst > DRIFT:
            return f"the run drifts by {worst:.2f} deviations, more than the {DRIFT:g} that the bound allows"
        if widest > VARIANCE:
            return (
                f"the run's slow fluctuations have {widest:.1f} times the variance of its scale, more than "
                f"the {VARIANCE:g} that the bound allows"
            )
        return ""

    def _message(self, step: int, rows: pd.DataFrame) -> Message:
        number, direction = self.evidence.strongest()
        metric, module, call, head = self.keys[number]
        own = rows[(rows["metric"] == metric) & (rows["module"] == module) & (rows["call"] == call)]
        own = own[own["head"].fillna(-1) == head]
        layer = whole(own["layer"].iloc[0]) if len(own) else None
        where = place(layer, None if head < 0 else head, module)
        value = f" to {own['value'].iloc[0]:.3g}" if len(own) else ""
        what = f"{_NAMES[metric].replace('_', ' ')} {'rose' if direction > 0 else 'fell'}{value}"
        since = int(self.quiet[(direction + 1) // 2, number])
        reason = self.invalid()
        sure = (
            f"not valid here: {reason}"
            if reason
            else f"a healthy run alarms with probability at most {self.alpha:g}"
        )
        return Message(step, "not valid" if reason else "alarm", where, _NAMES[metric], what, since, sure)

    def arm(self) -> None:
        """Begin again: evidence is forgotten, what the run's past taught is kept."""
        self.evidence = Evidence.none(len(self.keys))
        self.raised = None

    def as_state(self) -> dict[str, object]:
        """All of it, ready for JSON."""
        return {
            "keys": [list(key) for key in self.keys],
            "past": {name: _plain(value) for name, value in vars(self.past).items()},
            "log_r": _plain(self.evidence.log_r),
            "quiet": _plain(self.quiet),
            "seen": self.seen,
            "armed_at": self.armed_at,
            "raised": self.raised,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`as_state` gave."""
        self.keys = [tuple(key) for key in state["keys"]]
        self.past = Past(**{name: np.array(value, dtype=float) for name, value in state["past"].items()})
        self.past = dataclasses.replace(self.past, known=self.past.known.astype(np.int64))
        self.evidence = Evidence(np.array(state["log_r"], dtype=float).reshape(2, len(self.keys), -1))
        self.quiet = np.array(state["quiet"], dtype=np.int64).reshape(2, -1)
        self.seen, self.armed_at, self.raised = state["seen"], state["armed_at"], state["raised"]


@dataclass
class LossAlarm:
    """CUSUM(6, 1) of the loss, at every step, against mean and deviation of its own first 200 steps.

    A loss that is not finite is told at its own step. A CUSUM that came back to zero within 100 steps of
    its alarm was a spike that recovered.
    """

    first: list[float] = field(default_factory=list)
    total: float = 0.0
    began: int = 0
    raised: int | None = None
    broken: bool = False

    def step(self, step: int, loss: float) -> list[Message]:
        """The messages of one step."""
        if not np.isfinite(loss):
            told = [] if self.broken else [self._message(step, f"the loss is {loss}", step)]
            self.broken = True
            return told
        self.broken = False
        if len(self.first) < _LOSS_WINDOW:
            self.first.append(loss)
            return []
        deviation = float(np.std(self.first))
        if deviation == 0:
            return []
        if self.total == 0:
            self.began = step
        self.total = max(0.0, self.total + (loss - float(np.mean(self.first))) / deviation - _LOSS_SLACK)
        if self.raised is None and self.total >= _LOSS_THRESHOLD:
            self.raised = step
            return [self._message(step, f"the loss rose to {loss:.3g}", self.began)]
        if self.raised is not None and self.total == 0:
            recovered, self.raised = self.raised, None
            what = f"the loss rose at step {recovered} and has come back"
            return [Message(step, "spike", "loss", "loss", what, recovered, "a loss that recovered")]
        return []

    def _message(self, step: int, what: str, since: int) -> Message:
        return Message(step, "alarm", "loss", "loss", what, since, "CUSUM(6, 1) over the first 200 steps")


def _series(rows: pd.DataFrame) -> dict[tuple[str, str, int, int], float]:
    """Each value on a scale on which its changes are comparable."""
    found = {}
    for row in rows.itertuples():
        value = float(row.value)
        if row.metric == "normalised_entropy":
            inside = min(max(value, _EDGE), 1 - _EDGE) if np.isfinite(value) else np.nan
            value = float(np.log(inside / (1 - inside)))
        elif row.metric == "largest_logit":
            value = float(np.arcsinh(value / 2))  # the logarithm of a large one, and defined for all
        else:
            value = float(np.log(value)) if value > 0 else np.nan
        head = -1 if pd.isna(row.head) else int(row.head)
        found[row.metric, row.module, int(row.call), head] = value
    return found


def _plain(values: NDArray[np.generic]) -> list[object]:
    plain: list[object] = values.tolist()
    return plain

"""The alarm: has this run's attention, residual stream or loss changed against its own past?

Per head the logit of normalised entropy and the logarithm of the largest logit, per block the logarithm of
the residual's root mean square: each becomes winsorised residuals, and one e-detector, averaged over all of
them in both directions, bounds the probability that a healthy run ever alarms. The loss has a CUSUM at every
step beside it. Where the run itself drifts or fluctuates more than the bound assumes, no probability is
claimed. The procedure is ``joma.measures.change.detector``; what it is worth is measured
by the experiment ``alarm``.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.instruments.monitor.alarms.messages import Entry, Kind, Message, place, seen_in
from joma.measures.change.detector import FEWEST, DetectorState, add_look, began, comparable
from joma.measures.change.e_detector import DRIFT, VARIANCE, WEIGHTS, Evidence, threshold
from joma.measures.change.loss import WINDOW, LossCusum
from joma.measures.change.residuals import Moments, Past

_STREAMS = ("normalised_entropy", "largest_logit", "residual_rms")
_NAMES = {
    "normalised_entropy": "attention_entropy",
    "largest_logit": "largest_logit",
    "residual_rms": "residual_rms",
}


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
    watched: DetectorState = field(default_factory=lambda: began(0))
    quiet: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64))
    """Last step at which each series, falling and rising, was no farther out than the bound allows."""
    raised: int | None = None
    largest: float = -np.inf
    """The largest logarithm of the evidence so far."""
    level: float | None = None
    """A level from healthy runs (``joma.instruments.monitor.alarms.reference``), in place of the bound's."""
    level_sure: str = ""
    """What is known of that level."""

    def look(self, table: pd.DataFrame) -> list[Message]:
        """The messages of one step's table, as ``joma.instruments.monitor.monitor.Monitor`` makes it."""
        rows = table[table["metric"].isin(_STREAMS)]
        if rows.empty:
            return []
        step = int(rows["step"].iloc[0])
        values = _series(rows)
        if not self.keys:
            self.keys = list(values)
            self.watched = began(len(values))
            self.quiet = np.full((2, len(values)), step, dtype=np.int64)
        row = np.array([values.get(key, np.nan) for key in self.keys])
        self.watched, residual = add_look(self.watched, row, step)
        # What still teaches what the past is says nothing, and is as quiet as can be.
        signed = np.nan_to_num(np.stack([-residual, residual]))
        self.quiet[signed <= DRIFT] = step
        total = float(self.watched.evidence.total())
        self.largest = max(self.largest, total)
        bound = threshold(self.looks, self.alpha) if self.level is None else self.level
        if self.raised is not None or total < bound or (self.level is not None and total == bound):
            return []
        self.raised = step
        return [self._message(step, rows)]

    def invalid(self) -> str:
        """Why the bound does not hold for this run as far as it has shown; empty where nothing speaks
        against it.

        A run that is not ``judged`` yet has shown nothing.
        """
        if self.watched.looks > self.looks:
            return (
                f"the run was looked at {self.watched.looks} times, and {self.looks} were planned (steps=...)"
            )
        drift, variance = float(self.watched.drift), float(self.watched.variance)
        if drift > DRIFT:
            return f"the run drifts by {drift:.2f} deviations, more than the {DRIFT:g} that the bound allows"
        if variance > VARIANCE:
            return (
                f"the run's slow fluctuations have {variance:.1f} times the variance of its scale, more than "
                f"the {VARIANCE:g} that the bound allows"
            )
        return ""

    def is_judged(self) -> bool:
        """Whether the run has been seen to meet, or not to meet, the bound's assumptions."""
        return bool(self.invalid()) or not np.isnan(float(self.watched.valid()))

    def _message(self, step: int, rows: pd.DataFrame) -> Message:
        number, direction = self.watched.evidence.strongest()
        metric, module, call, head = self.keys[number]
        entries = list(seen_in(rows))
        own = [
            row
            for row in entries
            if (row.metric, row.module, row.call) == (metric, module, call)
            and (-1 if row.head is None else row.head) == head
        ]
        unseen = Entry(metric, module, call, None, None if head < 0 else head, np.nan)
        where = place(own[0] if own else unseen, entries)
        value = f" to {own[0].value:.3g}" if own else ""
        what = f"{_NAMES[metric].replace('_', ' ')} {'rose' if direction > 0 else 'fell'}{value}"
        since = int(self.quiet[(direction + 1) // 2, number])
        kind, sure = self._sure()
        return Message(step, kind, where, _NAMES[metric], what, since, sure)

    def _sure(self) -> tuple[Kind, str]:
        if self.level is not None:
            return "alarm", self.level_sure
        if reason := self.invalid():
            return "not valid", f"not valid here: {reason}"
        if not self.is_judged():
            return "not judged", (
                f"not yet judged: the run has not shown {FEWEST} quiet looks since alarms are active, "
                f"which it "
                "takes to see whether it drifts; no probability is claimed"
            )
        return "alarm", f"a healthy run alarms with probability at most {self.alpha:g}"

    def arm(self) -> None:
        """Begin again: evidence is forgotten, what the run's past taught is kept."""
        self.watched = self.watched.without_evidence()
        self.raised = None

    def as_state(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "looks": self.looks,
            "alpha": self.alpha,
            "keys": [list(key) for key in self.keys],
            "watched": _plain(dataclasses.asdict(self.watched)),
            "quiet": self.quiet.tolist(),
            "raised": self.raised,
            "largest": self.largest,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what ``as_state`` gave."""
        self.keys = [tuple(key) for key in state["keys"]]
        kept = state["watched"]
        if {len(values) for part in ("past", "moments") for values in kept[part].values()} != {
            len(self.keys)
        }:
            raise ValueError("its series are not those of its keys")
        past = {name: np.array(value, dtype=float) for name, value in kept["past"].items()}
        moments = {name: np.array(value, dtype=float) for name, value in kept["moments"].items()}
        self.watched = DetectorState(
            Past(**{**past, "known": past["known"].astype(np.int64)}),
            Moments(**{**moments, "counted": moments["counted"].astype(np.int64)}),
            Evidence(
                np.array(kept["evidence"]["log_r"], dtype=float).reshape(2, len(self.keys), len(WEIGHTS))
            ),
            kept["looks"],
            kept["first"],
            kept["armed_at"],
            np.array(kept["drift"], dtype=float),
            np.array(kept["variance"], dtype=float),
        )
        self.quiet = np.array(state["quiet"], dtype=np.int64).reshape(2, -1)
        self.raised, self.largest = state["raised"], float(state["largest"])


@dataclass
class LossAlarm:
    """CUSUM(6, 1) of the loss, at every step (``joma.measures.change.loss.LossCusum``).

    A loss that is not finite is told at its own step. A CUSUM that came back to zero after its alarm was a
    spike that recovered.
    """

    cusum: LossCusum = field(default_factory=LossCusum)
    began: int = 0
    raised: int | None = None
    broken: bool = False
    seen: bool = False
    """Whether some loss was finite."""

    def step(self, step: int, loss: float) -> list[Message]:
        """The messages of one step."""
        if not np.isfinite(loss):
            told = [] if self.broken else [self._not_finite(step, loss)]
            self.broken = True
            return told
        self.seen = True
        self.broken = False
        if self.cusum.total == 0:
            self.began = step
        beyond = self.cusum.add(loss)
        if beyond and self.raised is None:
            self.raised = step
            sure = f"CUSUM(6, 1) over the last {WINDOW} quiet steps"
            return [Message(step, "alarm", "loss", "loss", f"the loss rose to {loss:.3g}", self.began, sure)]
        if self.raised is not None and self.cusum.total == 0:
            recovered, self.raised = self.raised, None
            what = f"the loss rose at step {recovered} and has come back"
            return [Message(step, "spike", "loss", "loss", what, recovered, "a loss that recovered")]
        return []

    def _not_finite(self, step: int, loss: float) -> Message:
        to_do = (
            ""
            if self.seen
            else "no loss of this run was finite: check the data and the initial weights, and lower the "
            "learning rate"
        )
        sure = "a value, not a statistic"
        return Message(step, "alarm", "loss", "loss", f"the loss is {loss}", step, sure, to_do)

    def as_state(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        kept = {"began": self.began, "raised": self.raised, "broken": self.broken, "seen": self.seen}
        past = {name: list(getattr(self.cusum, name)) for name in ("reference", "excursion")}
        own = {**vars(self.cusum), **past}
        return {**kept, "cusum": own}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what ``as_state`` gave."""
        own = state["cusum"]
        reference, excursion = (deque(own[name], maxlen=WINDOW) for name in ("reference", "excursion"))
        self.cusum = LossCusum(reference, excursion, own["total"])
        self.began, self.raised, self.broken = state["began"], state["raised"], state["broken"]
        self.seen = state["seen"]


def _series(rows: pd.DataFrame) -> dict[tuple[str, str, int, int], float]:
    """Each value on a scale on which its changes are comparable."""
    found = {}
    for row in seen_in(rows):
        head = -1 if row.head is None else row.head
        found[row.metric, row.module, row.call, head] = row.value
    metrics = np.array([metric for metric, *_ in found])
    values = np.array(list(found.values()))
    for metric in _STREAMS:
        values[metrics == metric] = comparable(metric, values[metrics == metric])
    return dict(zip(found, values.tolist(), strict=True))


def _plain(value: Any) -> Any:
    """Arrays as lists, numbers of NumPy as numbers."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value

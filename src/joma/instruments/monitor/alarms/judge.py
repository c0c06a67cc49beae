"""What a run's rows say, and the memory that this takes: the change alarm, the loss's, and lasting states."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from joma.instruments.monitor.alarms.alarm import ChangeAlarm, LossAlarm
from joma.instruments.monitor.alarms.messages import Message, states
from joma.instruments.monitor.measuring.rows import RAW
from joma.measures.change.detector import first_alarm


class Judge:
    """The detectors of one run.

    Args:
        looks: looks planned for the whole run.
        alpha: probability that a healthy run alarms within them.
    """

    def __init__(self, looks: int, alpha: float) -> None:
        self.change = ChangeAlarm(looks=looks, alpha=alpha)
        self.loss = LossAlarm()
        self._since: dict[str, int] = {}

    def losses(self, table: pd.DataFrame) -> list[Message]:
        """What the losses among these rows say, in their order."""
        own = table[table["metric"] == "loss"]
        return [
            message
            for step, value in zip(own["step"].tolist(), own["value"].tolist(), strict=True)
            for message in self.loss.step(step, value)
        ]

    def look(self, rows: pd.DataFrame, rate: float | None = None) -> list[Message]:
        """What the rows of one look say: alarms, then states; ``rate``: the learning rate, if it is known."""
        first = self.change.watched.looks == 0
        alarms = self.change.look(rows)
        return alarms + states(rows, self._since, first=first, rate=rate)

    def possible_from(self, following: int, every: int) -> int | None:
        """The first step at which a change can be alarmed, of a run whose next step is this one; None:
        now.
        """
        if self.change.watched.armed_at is not None:
            return None
        first = self.change.watched.first
        return first_alarm(first if first >= 0 else -(-max(following, 0) // every) * every, every)

    def replay(self, table: pd.DataFrame) -> None:
        """Be as after these rows and no others: what comes again must not count twice."""
        self.change = ChangeAlarm(looks=self.change.looks, alpha=self.change.alpha)
        self.loss, self._since = LossAlarm(), {}
        self.further(table)

    def further(self, table: pd.DataFrame) -> None:
        """Be as after these rows too; what they say was said."""
        self.losses(table)
        looks = table[~table["metric"].isin(RAW)]
        for _, rows in looks.groupby("step", sort=True):
            self.look(rows)

    def as_state(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {"alarm": self.change.as_state(), "loss": self.loss.as_state(), "since": self._since}

    def restore(self, state: dict[str, Any]) -> Judge:
        """One that continues from what ``as_state`` gave.

        Raises:
            ValueError, TypeError, KeyError, ...: it gave something else.
        """
        judge = Judge(self.change.looks, self.change.alpha)
        planned = {"looks": self.change.looks, "alpha": self.change.alpha}  # may be others now
        state = {"alarm": {**state["alarm"], **planned}, "loss": state["loss"], "since": state["since"]}
        judge.change.restore(state["alarm"])
        judge.loss.restore(state["loss"])
        judge._since = {str(key): int(step) for key, step in state["since"].items()}
        if json.dumps(judge.as_state()) != json.dumps(state):
            raise ValueError("it holds something else than the monitor keeps")
        return judge

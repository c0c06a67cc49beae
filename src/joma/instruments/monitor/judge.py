"""What a run's rows say, and the memory that this takes: the change alarm, the loss's, and lasting states."""

from __future__ import annotations

from typing import Any

import pandas as pd

from joma.instruments.monitor.alarm import ChangeAlarm, LossAlarm
from joma.instruments.monitor.messages import Message, states
from joma.instruments.monitor.rows import RAW


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
            for step, value in zip(own["step"], own["value"], strict=True)
            for message in self.loss.step(int(step), float(value))
        ]

    def look(self, rows: pd.DataFrame) -> list[Message]:
        """What the rows of one look say."""
        return states(rows, self._since) + self.change.look(rows)

    def again(self, table: pd.DataFrame) -> None:
        """Be as after these rows and no others: what comes again must not count twice."""
        self.change = ChangeAlarm(looks=self.change.looks, alpha=self.change.alpha)
        self.loss, self._since = LossAlarm(), {}
        for _, rows in table.groupby("step", sort=True):
            self.losses(rows)
            self.look(rows[~rows["metric"].isin(RAW)])

    def as_state(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {"alarm": self.change.as_state(), "loss": self.loss.as_state(), "since": self._since}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what ``as_state`` gave."""
        self.change.restore(state["alarm"])
        self.loss.restore(state["loss"])
        self._since = dict(state["since"])

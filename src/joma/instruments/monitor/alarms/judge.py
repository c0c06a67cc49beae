"""What a run's rows say, and the memory that this takes: the change alarm, the loss's, and lasting states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.instruments.monitor.alarms.alarm import ChangeAlarm, LossAlarm
from joma.instruments.monitor.alarms.growth import GrowthAlarm, Place
from joma.instruments.monitor.alarms.messages import Message, states
from joma.instruments.monitor.alarms.outside import Outside
from joma.instruments.monitor.alarms.reference import Reference
from joma.instruments.monitor.measuring.rows import LOG_NORM, RAW
from joma.measures.change.detector import LEARNING, first_alarm


class Judge:
    """The detectors of one run.

    Args:
        looks: looks planned for the whole run.
        alpha: probability that a healthy run alarms within them.
    """

    def __init__(self, looks: int, alpha: float) -> None:
        self.change = ChangeAlarm(looks=looks, alpha=alpha)
        self.loss = LossAlarm()
        self.growth = GrowthAlarm()
        self.outside = Outside()
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
        self.growth.look(rows)
        told = self._renew_after(int(rows["step"].iloc[0]), self.outside.look(_rows_seen(rows)))
        alarms = told + self.change.look(rows)
        return alarms + states(rows, self._since, first=first, rate=rate)

    def norms(self, step: int, places: Sequence[Place], values: NDArray[np.float64]) -> list[Message]:
        """What ln sigma_1 of each head, read at this step, says."""
        return self.growth.reading(step, places, values)

    def hold_against(self, reference: Reference, model: str, every: int) -> None:
        """Alarm where healthy runs of this network would hardly come.

        Raises:
            InputError: they are of another network.
        """
        reference.check(model, every)
        self.change.level, self.growth.level, share = reference.levels(self.change.alpha)
        count = len(reference.change)
        sure = (
            f"none of {count} healthy runs went so far, or hardly one: a run like them does with "
            f"probability at most {share:.2g} in {reference.steps:,} steps"
        )
        self.change.level_sure = self.growth.level_sure = sure
        self.growth.kind = "alarm"

    def settings(self, step: int, groups: Sequence[Mapping[str, Any]]) -> list[Message]:
        """What was changed in an optimizer's groups."""
        return self._renew_after(step, self.outside.read(groups))

    def _renew_after(self, step: int, changes: Sequence[str]) -> list[Message]:
        """Learn the past anew: what comes after a change is not held against what came before it."""
        if changes:
            self.arm()
            self.change, self.loss = self._fresh_change(), LossAlarm()
            self.growth.renew()
        after = "; what is usual is learnt anew from here on"
        return [Message(step, "change", "settings", "settings", f"{one}{after}", step, "") for one in changes]

    def _fresh_change(self) -> ChangeAlarm:
        own = self.change
        return ChangeAlarm(own.looks, own.alpha, level=own.level, level_sure=own.level_sure)

    def arm(self) -> None:
        """Forget the evidence, so that a further alarm can be told."""
        self.change.arm()

    def possible_from(self, following: int, every: int) -> int | None:
        """The first step at which a change can be alarmed, of a run whose next step is this one; None:
        now.
        """
        if self.change.watched.armed_at is not None:
            return None
        first = self.change.watched.first
        return first_alarm(first if first >= 0 else -(-max(following, 0) // every) * every, every)

    def when_possible(self, following: int, every: int, planned: int | None) -> tuple[bool, str]:
        """Whether a change can be alarmed within the planned steps, and a sentence on when; "" for now."""
        when = self.possible_from(following, every)
        if when is None:
            return True, ""
        if planned is None or when <= planned:
            return True, f"alarms are possible from step {when}"
        closer = max(1, planned // (4 * LEARNING))
        return False, (
            f"no change can be alarmed in {planned:,} steps: at a look each {every} steps alarms are "
            f"possible from step {when:,}; with every={closer} from step {first_alarm(0, closer):,}."
        )

    def replay(self, table: pd.DataFrame) -> None:
        """Be as after these rows and no others: what comes again must not count twice."""
        self.outside.batches.clear()
        own = self.growth
        self.change, self.loss, self._since = self._fresh_change(), LossAlarm(), {}
        self.growth = GrowthAlarm(own.kind, own.level, own.level_sure, attended=own.attended)
        self.further(table)

    def further(self, table: pd.DataFrame) -> None:
        """Be as after these rows too; what they say was said."""
        self.losses(table)
        for step, rows in table[~table["metric"].isin(RAW)].groupby("step", sort=True):
            read = rows["metric"] == LOG_NORM
            if read.any():
                own = rows[read]
                places = zip(own["stack"], own["layer"], own["module"], own["head"], strict=True)
                self.norms(
                    int(str(step)),
                    [(str(s), int(n), str(m), int(h)) for s, n, m, h in places],
                    own["value"].to_numpy(float),
                )
            if not read.all():
                self.look(rows[~read])

    def as_state(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "alarm": self.change.as_state(),
            "loss": self.loss.as_state(),
            "since": self._since,
            "growth": self.growth.as_state(),
            "outside": vars(self.outside),
        }

    def restore(self, state: dict[str, Any]) -> Judge:
        """One that continues from what ``as_state`` gave.

        Raises:
            ValueError, TypeError, KeyError, ...: it gave something else.
        """
        judge = Judge(self.change.looks, self.change.alpha)
        planned = {"looks": self.change.looks, "alpha": self.change.alpha}  # may be others now
        kept = {name: state[name] for name in ("loss", "since", "growth", "outside")}
        state = {"alarm": {**state["alarm"], **planned}, **kept}
        judge.change.restore(state["alarm"])
        judge.loss.restore(state["loss"])
        judge.growth.restore(state["growth"])
        judge.outside = Outside(**state["outside"])
        judge.change.level, judge.change.level_sure = self.change.level, self.change.level_sure
        judge.growth.level, judge.growth.level_sure = self.growth.level, self.growth.level_sure
        judge.growth.kind = self.growth.kind
        judge._since = {str(key): int(step) for key, step in state["since"].items()}
        if json.dumps(judge.as_state()) != json.dumps(state):
            raise ValueError("it holds something else than the monitor keeps")
        return judge


def _rows_seen(rows: pd.DataFrame) -> int:
    """Query rows behind each head of the first attention among a look's rows."""
    own = rows[rows["head"].notna()]
    return int(own["count"].iloc[0]) if len(own) and "count" in own else 0

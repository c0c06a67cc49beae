"""What a monitor reads between two looks, and when it says something of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn
from torch.optim.optimizer import Optimizer

from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.guard import LOG, Guard
from joma.instruments.monitor.measuring.blocks import Block
from joma.instruments.monitor.measuring.gauge import READ_EVERY, Gauge
from joma.instruments.monitor.measuring.look import Observation
from joma.instruments.monitor.measuring.products import AttentionPlace, attended_in
from joma.instruments.monitor.measuring.rows import BETWEEN, frame, summary
from joma.instruments.monitor.record import Record
from joma.instruments.monitor.sinks import Destination


class Between:
    """The weights' norms at every ``READ_EVERY``-th step, judged when they have come to the host.

    Args:
        model: whose weights.
        blocks: of it.
        guard: says what goes wrong.
        reads: whether this process reads them: the first one does, since all have the same weights.
        waits: whether they are judged at looks only, as where several processes look together.
    """

    def __init__(
        self, model: nn.Module, blocks: Sequence[Block], guard: Guard, *, reads: bool, waits: bool
    ) -> None:
        self.gauge = Gauge(model, blocks)
        self._guard = guard
        self._reads, self._waits = reads, waits
        self._kept: list[tuple[int, NDArray[np.float64]]] = []

    def search(self, seen: Sequence[Observation], judge: Judge) -> None:
        """Find the queries and keys of what a look saw, in every process: acts need them."""
        if not self.gauge.searched:
            attended = attended_in(seen)
            judge.growth.attended = [list(astuple(one)) for one in attended]
            self._guard.attempt("queries and keys", partial(self._search, attended))

    def _search(self, attended: Sequence[AttentionPlace]) -> None:
        if said := self.gauge.search(attended):
            self._guard.say("queries and keys", said)

    def step(self, step: int, judge: Judge, optimizer: Optimizer | None) -> list[Message]:
        """A step is done: read where its turn has come, and judge what is there."""
        told: list[Message] = []
        if optimizer is not None and self._reads:
            groups = optimizer.param_groups
            self._guard.attempt("the optimizer", lambda: told.extend(judge.settings(step, groups)))
        if self._reads and not self.gauge.searched and judge.growth.attended:  # a run that goes on
            known = [AttentionPlace(*one) for one in judge.growth.attended]
            self._guard.attempt("queries and keys", partial(self._search, known))
        if self._reads and step % READ_EVERY == 0:
            self._guard.attempt("queries and keys", partial(self.gauge.read, step))
        return told if self._waits else told + self._judge(judge, wait=False)

    def drain(self, judge: Judge) -> tuple[pd.DataFrame, list[Message]]:
        """All readings so far as rows, and what those that were not judged yet say."""
        told = self._judge(judge, wait=True)
        rows: list[pd.DataFrame] = []
        kept, self._kept = self._kept, []
        self._guard.attempt("queries and keys", lambda: rows.append(self.gauge.rows(kept)))
        return rows[0] if rows else frame([]), told

    def forget(self, step: int) -> None:
        """Readings of this step and later ones: a run that went back takes them anew."""
        self.gauge.forget(step)
        self._kept = [one for one in self._kept if one[0] < step]

    def _judge(self, judge: Judge, *, wait: bool) -> list[Message]:
        told: list[Message] = []
        for step, values in self.gauge.take(wait=wait):
            self._kept.append((step, values))
            self._guard.attempt("queries and keys", partial(self._tell, judge, step, values, told))
        return told

    def _tell(self, judge: Judge, step: int, values: NDArray[np.float64], told: list[Message]) -> None:
        told += judge.norms(step, self.gauge.places, values)


def judge_look(
    step: int, rows: pd.DataFrame, record: Record, judge: Judge, sink: Destination | None, rate: float | None
) -> list[Message]:
    """Keep the rows of a look and of the steps before it, and hand its numbers on; what they say."""
    told = [] if rows.empty else judge.losses(record.keep(rows))
    between = rows["metric"].isin(BETWEEN)
    if not between.all():
        looked_at = rows[~between].reset_index(drop=True)
        told += judge.look(looked_at, rate)
        if sink is not None:
            sink.write(step, summary(looked_at, rows[between]))
    return told


def say_when(judge: Judge, following: int, every: int, planned: int | None, guard: Guard) -> None:
    """From which step on an alarm is possible; a warning where that is after the planned ones."""
    in_time, words = judge.when_possible(following, every, planned)
    if not in_time:
        guard.say("the monitor", words)
    elif words:
        LOG.info("joma: %s", words)

"""``joma.Monitor``: a training loop's attention, residual stream and ranks, at a cadence, with messages."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self, TypedDict

import pandas as pd
from torch import Tensor, nn

from joma.errors import InputError, JomaError
from joma.probes.live.alarm import ChangeAlarm, LossAlarm
from joma.probes.live.folder import VERSION, Folder, read_messages, read_table
from joma.probes.live.look import Look, Seen, residual_blocks
from joma.probes.live.messages import Message, states
from joma.probes.live.ranks import is_first, over_ranks
from joma.probes.live.rows import COLUMNS, frame, gradient_norm, on_host, summary, tidy, typed
from joma.probes.live.sinks import ScalarWriter, Sink, sink_of
from joma.probes.live.weights import sharded, stable_ranks
from joma.probes.watching.measuring import check_statistics

RANKS_EVERY = 20
"""Looks between two readings of the stable ranks."""
STATISTICS = ("entropy", "normalised_entropy", "largest_logit", "first_key_mass")
OnAlarm = Literal["log", "warn", "stop"] | Callable[[Message], None]
_log = logging.getLogger("joma")


class MonitorSettings(TypedDict, total=False):
    """The settings of :class:`Monitor`, the model aside, as the skins over it take them."""

    every: int
    statistics: Sequence[str]
    layers: Iterable[int | str] | None
    rows: float | None
    log: Sink | ScalarWriter | str | None
    folder: str | Path | None
    ranks_every: int | None
    steps: int | None
    alpha: float
    on_alarm: OnAlarm


class StopTraining(Exception):
    """Raised by :meth:`Monitor.step` with ``on_alarm="stop"``; ``message`` says why."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.sentence())
        self.message = message


class Monitor:
    """Watch a model train: ``with joma.Monitor(model) as monitor: ... monitor.step(step, loss=loss)``.

    At every ``every``-th step the forward passes in training mode are measured beside the model, whose
    outputs and gradients stay the same bit for bit; between them nothing is attached to the model, and
    losses stay on their device. Under several processes (``torch.distributed``) each measures its share of
    the batch; their looks are joined, and the first process writes. Whatever goes wrong in the monitor is one
    line of the log ``joma``; training goes on.

    Args:
        model: any module, compiled ones as well (they run uncompiled at a step that is looked at).
        every: steps between looks, at least 1.
        statistics: of the attention, as for :func:`joma.watch`; per head, means over rows
            (``largest_logit``: the largest).
        layers: which attentions, as for :func:`joma.watch`. None: all.
        rows: share of the query rows, as for :func:`joma.watch`. None: all.
        log: where numbers go besides the folder (see :func:`joma.probes.live.sinks.sink_of`).
        folder: where everything is kept, in small Parquet files; None: in memory alone.
        ranks_every: looks between two readings of the stable rank of each lower MLP and of W_Q^T W_K; None:
            none. Weights of which a process holds a share alone (FSDP2, ZeRO) are left out, and their
            gradients' norm is what the loop gives.
        steps: steps planned, for the alarm's bound. None: 100,000.
        alpha: probability that a healthy run alarms, within the planned steps.
        on_alarm: ``"log"``, ``"warn"``, ``"stop"`` (``step`` raises :class:`StopTraining`) or a function.

    Raises:
        InputError: a model that is no module, a cadence below 1, an unknown statistic or sink.
        RunDirectoryError: a folder that holds something else.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 50,
        statistics: Sequence[str] = STATISTICS,
        layers: Iterable[int | str] | None = None,
        rows: float | None = None,
        log: Sink | ScalarWriter | str | None = None,
        folder: str | Path | None = None,
        ranks_every: int | None = RANKS_EVERY,
        steps: int | None = None,
        alpha: float = 0.05,
        on_alarm: OnAlarm = "log",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"Monitor(model) got a {type(model).__name__}; give a torch.nn.Module.")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(
                f"every = {every!r} in Monitor is no cadence; give a whole number of at least 1."
            )
        if ranks_every is not None and ranks_every < 1:
            raise InputError(f"ranks_every = {ranks_every!r} in Monitor; give at least 1 look, or None.")
        if steps is not None and steps < 1:
            raise InputError(f"steps = {steps!r} in Monitor; plan at least 1 step, or None.")
        if not 0 < alpha < 1:
            raise InputError(f"alpha = {alpha!r} in Monitor is no probability; give one in (0, 1).")
        if not callable(on_alarm) and on_alarm not in ("log", "warn", "stop"):
            raise InputError(f"on_alarm = {on_alarm!r} in Monitor; give 'log', 'warn', 'stop' or a function.")
        self.every = every
        self.messages: list[Message] = []
        self._model = model
        self._statistics = check_statistics(statistics)
        self._layers = None if layers is None else list(layers)
        self._rows = rows
        self._blocks = residual_blocks(model)
        self._sink = sink_of(log)
        self._on_alarm = on_alarm
        self._alarm = ChangeAlarm(looks=math.ceil((steps or 100_000) / every), alpha=alpha)
        self._loss_alarm = LossAlarm()
        self._since: dict[str, int] = {}
        self._ranks_every = ranks_every
        self._look: Look | None = None
        self._due = False
        self._raw: list[tuple[int, str, Tensor | float]] = []
        self._tables: list[pd.DataFrame] = []
        self._folder: Folder | None = None
        self._last = -1
        self._failed: set[str] = set()
        if not is_first():
            folder, self._sink = None, None
        if folder is not None:
            facts = {"version": VERSION, "model": type(model).__name__, "statistics": list(self._statistics)}
            self._folder = Folder.opened(Path(folder), {**facts, "every": every})
            self._resume(self._folder)

    def __enter__(self) -> Self:
        self.begin(self._last + 1)
        return self

    def begin(self, step: int) -> None:
        """The next optimizer step has this number; it is looked at if its turn has come."""
        if step <= self._last:
            self._go_back(step)
        self._last = step - 1
        self._shut()
        self._open(step)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def step(
        self,
        step: int | None = None,
        *,
        loss: Tensor | float | None = None,
        grad_norm: Tensor | float | None = None,
    ) -> None:
        """One optimizer step is done. Gradients that are still there are measured.

        Args:
            step: its number, growing; None: one more than the last. A smaller one (a run that went back to
                a checkpoint) replaces what was measured from there on.
            loss: of this step, kept on its device until the next look.
            grad_norm: where the loop has it already.

        Raises:
            StopTraining: with ``on_alarm="stop"``, at an alarm.
        """
        now = self._last + 1 if step is None else int(step)
        if now <= self._last:
            self._go_back(now)
        self._last = now
        self.note(now, loss=loss, grad_norm=gradient_norm(self._model) if grad_norm is None else grad_norm)
        if self._due:
            self._take(now)
        self._open(now + 1)

    @property
    def last(self) -> int:
        """The last step that is done; -1 before the first."""
        return self._last

    def note(
        self, step: int, *, loss: Tensor | float | None = None, grad_norm: Tensor | float | None = None
    ) -> None:
        """Numbers of a step, some of which are known only after it was done."""
        for metric, value in (("loss", loss), ("gradient_norm", grad_norm)):
            if value is not None:
                self._try(f"the {metric.replace('_', ' ')}", partial(self._note, step, metric, value))

    def _note(self, step: int, metric: str, value: Tensor | float) -> None:
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise InputError(
                    f"a tensor of shape {tuple(value.shape)} and {value.dtype} is no one number."
                )
            self._raw.append((step, metric, value.detach()))
        else:
            self._raw.append((step, metric, float(value)))

    def table(self) -> pd.DataFrame:
        """Everything measured so far, one row per measurement: :data:`joma.probes.live.rows.COLUMNS`."""
        if not self._tables:
            return pd.DataFrame(columns=list(COLUMNS))
        return pd.concat(self._tables, ignore_index=True)

    def ranks(self) -> pd.DataFrame:
        """The stable ranks of the weights as they are now, as rows of :meth:`table`.

        Raises:
            InputError: weights of which this process holds a share alone, or that no name tells apart.
        """
        if reason := sharded(self._model):
            raise InputError(f"{reason}; they are left out.")
        return stable_ranks(self._model, self._last)

    def close(self) -> None:
        """Write what is pending, merge the folder's parts, leave the model as it was."""
        self._shut()
        told = self._keep(self._drained())
        if self._folder is not None:
            self._try("the folder", self._folder.merge)
        self._tell(told, may_stop=False)

    # One look

    def _open(self, following: int) -> None:
        # Due on every process alike, whether its look opens or not: their looks are joined.
        self._due = following % self.every == 0
        if not self._due or self._look is not None:
            return
        look = Look(self._model, self._statistics, self._layers, self._rows, self._blocks)
        if self._try("a look", look.open):
            self._look = look

    def _shut(self) -> None:
        if self._look is not None:
            look, self._look = self._look, None
            self._try("a look", look.close)

    def _take(self, step: int) -> None:
        look = self._look
        self._shut()
        seen: list[Seen] = []
        ranks: list[pd.DataFrame] = []
        if look is not None:
            self._try("a look", lambda: seen.extend(look.taken()))
        rows = over_ranks(tidy(step, seen))
        if self._ranks_every and (step // self.every) % self._ranks_every == 0 and is_first():
            self._try("the stable ranks", lambda: ranks.append(self.ranks()))
            rows = pd.concat([rows, *ranks], ignore_index=True)
        told = self._keep(
            pd.concat([self._drained(), rows], ignore_index=True) if len(rows) else self._drained()
        )
        if len(rows):
            told += states(rows, self._since) + self._alarm.look(rows)
            if self._sink is not None:
                self._sink.write(step, summary(rows, self._tables[-1]))
        if self._folder is not None:
            state = {
                "alarm": self._alarm.as_state(),
                "loss": self._loss_alarm.as_state(),
                "since": self._since,
            }
            folder = self._folder
            self._try("the folder", lambda: folder.keep_state({"step": step, **state}))
        self._tell(told)

    def _drained(self) -> pd.DataFrame:
        """Losses and gradient norms of the steps since the last look, in one transfer."""
        raw, self._raw = self._raw, []
        numbers = iter(on_host([value for _, _, value in raw if isinstance(value, Tensor)]))
        return frame(
            [
                [
                    step,
                    None,
                    "",
                    0,
                    None,
                    metric,
                    next(numbers) if isinstance(value, Tensor) else value,
                    "",
                    1,
                ]
                for step, metric, value in raw
            ]
        )

    def _keep(self, table: pd.DataFrame) -> list[Message]:
        if table.empty:
            return []
        table = typed(table)
        self._tables.append(table)
        if self._folder is not None:
            folder = self._folder
            self._try("the folder", lambda: folder.add(table))
        losses = table[table["metric"] == "loss"]
        return [
            message
            for step, value in zip(losses["step"], losses["value"], strict=True)
            for message in self._loss_alarm.step(int(step), float(value))
        ]

    def _tell(self, told: list[Message], *, may_stop: bool = True) -> None:
        self.messages += told
        if told and self._folder is not None:
            folder = self._folder
            self._try("the folder", lambda: folder.tell(self.messages))
        for message in told:
            if self._sink is not None:
                self._sink.tell(message)
            if callable(self._on_alarm):
                self._on_alarm(message)
            elif self._on_alarm == "warn":
                warnings.warn(message.sentence(), stacklevel=3)
            else:
                _log.warning("joma: %s", message.sentence())
        if may_stop and self._on_alarm == "stop":
            alarms = [message for message in told if message.kind == "alarm"]
            if alarms:
                self.close()
                raise StopTraining(alarms[0])

    # Runs that are continued

    def _resume(self, folder: Folder) -> None:
        state = folder.state()
        self._last = folder.last
        self.messages = read_messages(folder.path)
        if state is None:
            return
        self._alarm.restore(state["alarm"])
        self._loss_alarm.restore(state["loss"])
        self._since = dict(state["since"])

    def _go_back(self, step: int) -> None:
        self._raw = [entry for entry in self._raw if entry[0] < step]
        self._tables = [table[table["step"] < step] for table in self._tables]
        self.messages = [message for message in self.messages if message.step < step]
        if self._folder is not None:
            folder = self._folder
            self._try("the folder", lambda: folder.cut(step))
            self._try("the folder", lambda: folder.tell(self.messages))
            self._try("the alarm's past", lambda: self._replay(read_table(folder.path)))
        else:
            self._replay(self.table())

    def _replay(self, table: pd.DataFrame) -> None:
        """The detectors as they were after these rows: what comes again must not count twice."""
        self._alarm = ChangeAlarm(looks=self._alarm.looks, alpha=self._alarm.alpha)
        self._loss_alarm, self._since = LossAlarm(), {}
        for step, rows in table.groupby("step", sort=True):
            for loss in rows.loc[rows["metric"] == "loss", "value"]:
                self._loss_alarm.step(int(step), float(loss))
            looked_at = rows[~rows["metric"].isin(("loss", "gradient_norm"))]
            states(looked_at, self._since)
            self._alarm.look(looked_at)

    def _try(self, what: str, act: Callable[[], object]) -> bool:
        """Whether it went well; otherwise one line, once for each reason."""
        try:
            act()
        except Exception as error:  # nothing in a monitor may end a training run
            line = str(error) if isinstance(error, JomaError) else f"{type(error).__name__}: {error}"
            if line not in self._failed:
                self._failed.add(line)
                _log.warning("joma: %s failed: %s", what, " ".join(line.split()))
            return False
        return True

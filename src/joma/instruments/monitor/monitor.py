"""``joma.Monitor``: a training loop's attention, residual stream and ranks, at a cadence, with messages."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict

import pandas as pd
from torch import Tensor, nn

from joma.core.errors import InputError, JomaError
from joma.instruments.monitor.folder import VERSION, Folder, read_messages
from joma.instruments.monitor.judge import Judge
from joma.instruments.monitor.look import Look, residual_blocks
from joma.instruments.monitor.messages import Message
from joma.instruments.monitor.ranks import is_first, of_first, over_ranks
from joma.instruments.monitor.rows import COLUMNS, RAW, frame, gradient_norm, on_host, summary, tidy, typed
from joma.instruments.monitor.sinks import ScalarWriter, Sink, sink_of
from joma.instruments.monitor.weights import sharded, stable_ranks
from joma.instruments.watch.measuring import check_statistics

RANKS_EVERY = 20
"""Looks between two readings of the stable ranks."""
STATISTICS = ("entropy", "normalised_entropy", "largest_logit", "first_key_mass")
OnAlarm = Literal["log", "warn", "stop"] | Callable[[Message], None]
_log = logging.getLogger("joma")


class MonitorSettings(TypedDict, total=False):
    """The settings of ``Monitor``, the model aside, as the skins over it take them."""

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
    """Raised by ``Monitor.step`` with ``on_alarm="stop"``; ``message`` says why."""

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
        statistics: of the attention, as for ``joma.watch``; per head, means over rows
            (``largest_logit``: the largest).
        layers: which attentions, as for ``joma.watch``. None: all.
        rows: share of the query rows, as for ``joma.watch``. None: all.
        log: where numbers go besides the folder (see ``joma.instruments.monitor.sinks.sink_of``).
        folder: where everything is kept, in small Parquet files; None: in memory alone.
        ranks_every: looks between two readings of the stable rank of each lower MLP and of W_Q^T W_K; None:
            none. Weights of which a process holds a share alone (FSDP2, ZeRO) are left out, and their
            gradients' norm is what the loop gives.
        steps: steps planned, for the alarm's bound. None: 100,000.
        alpha: probability that a healthy run alarms, within the planned steps.
        on_alarm: ``"log"``, ``"warn"``, ``"stop"`` (``step`` raises ``StopTraining``) or a function.

    Raises:
        InputError: a model that is no module, a cadence below 1, an unknown statistic or sink.
        RunDirectoryError: a folder that holds something else.

    Examples:
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> with joma.Monitor(model, every=5) as monitor:
        ...     for step in range(10):
        ...         loss = model(torch.randn(4, 6, 8)).square().mean()
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        ...         messages = monitor.step(step, loss=loss)
        >>> monitor.table().query("metric == 'attention_entropy'")["step"].unique().tolist()
        [0, 5]
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
        self._judge = Judge(looks=math.ceil((steps or 100_000) / every), alpha=alpha)
        self._ranks_every = ranks_every
        self._look: Look | None = None
        self._due = False
        self._raw: list[tuple[int, str, Tensor | float]] = []
        self._tables: list[pd.DataFrame] = []
        self._folder: Folder | None = None
        self._last = -1
        self._looked = -1
        """The last step that was looked at, or came before the first one."""
        self._failed: set[str] = set()
        problem: JomaError | None = None
        if not is_first():
            self._sink = None
        elif folder is not None:
            facts = {"version": VERSION, "model": type(model).__name__, "statistics": list(self._statistics)}
            try:
                self._folder = Folder.opened(Path(folder), {**facts, "every": every})
                self._resume(self._folder)
            except JomaError as error:
                problem = error
        # All processes begin at one step, or none does.
        self._last, problem = of_first((self._last, problem))
        if problem is not None:
            raise problem

    def __enter__(self) -> Self:
        self.begin(self._last + 1)
        return self

    def begin(self, step: int) -> None:
        """The next optimizer step has this number; it is looked at if its turn has come."""
        if step <= self._last:
            self._go_back(step)
        self._last = self._looked = step - 1
        self._shut()
        self._open(step)

    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None:
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
        self.note(now, loss=loss, grad_norm=self.gradient_norm() if grad_norm is None else grad_norm)
        if self._due:
            self._take(now)
        self._open(now + 1)

    def gradient_norm(self) -> Tensor | None:
        """The 2-norm of the gradients that are there, on their device; None where it is not to be had."""
        found: list[Tensor | None] = []
        self._try("the gradient norm", lambda: found.append(gradient_norm(self._model)))
        return found[0] if found else None

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
            # A copy: what a loop adds up in place, or a Trainer scales, is not what this step had.
            self._raw.append((step, metric, value.detach().clone()))
        else:
            self._raw.append((step, metric, float(value)))

    def table(self) -> pd.DataFrame:
        """Everything measured so far, one row per measurement: ``joma.instruments.monitor.rows.COLUMNS``.

        Raises:
            RunDirectoryError: a damaged file of the folder.
        """
        if self._folder is not None:
            return self._folder.table()
        if not self._tables:
            return pd.DataFrame(columns=list(COLUMNS))
        return pd.concat(self._tables, ignore_index=True)

    def ranks(self) -> pd.DataFrame:
        """The stable ranks of the weights as they are now, as rows of ``table``.

        Raises:
            InputError: weights of which this process holds a share alone, or that no name tells apart.
        """
        if reason := sharded(self._model):
            raise InputError(f"{reason}; they are left out.")
        return stable_ranks(self._model, self._last)

    def close(self) -> None:
        """Write what is pending, merge the folder's parts, leave the model as it was."""
        self._shut()
        told: list[Message] = []
        self._try("the monitor", lambda: told.extend(self._keep(self._drained())))
        if self._folder is not None:
            self._try("the folder", self._folder.merge)
            self._keep_state()
        self._tell(told)

    # One look

    def _open(self, following: int) -> None:
        # Due on every process alike, whether its look opens or not: their looks are joined.
        self._due = following // self.every > self._looked // self.every
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
        self._looked = step
        own: list[pd.DataFrame] = []
        self._try("a look", lambda: own.append(self._drained()))
        self._try("a look", lambda: own.append(self._seen(step)))
        # Every process joins in, whatever went wrong in it, or the others would wait for it.
        rows = over_ranks(pd.concat(own, ignore_index=True) if own else frame([]))
        told: list[Message] = []
        if is_first():
            self._try("the monitor", lambda: told.extend(self._judged(step, rows)))
            self._keep_state()
        self._tell(told)
        if self._on_alarm == "stop":
            # One process decides for all: if one stopped alone, the others would wait for it.
            alarm = of_first(next((message for message in told if message.kind == "alarm"), None))
            if alarm is not None:
                self.close()
                raise StopTraining(alarm)

    def _seen(self, step: int) -> pd.DataFrame:
        """What the look that is open saw; what it could not see is said."""
        look = self._look
        self._shut()
        if look is None:
            return frame([])
        seen, problem = look.taken()
        if problem:
            self._say("a look", problem)
        return tidy(step, seen)

    def _judged(self, step: int, rows: pd.DataFrame) -> list[Message]:
        """Keep the rows of a look and of the steps before it; what they say."""
        if self._ranks_every and (step // self.every) % self._ranks_every == 0:
            ranks: list[pd.DataFrame] = []
            self._try("the stable ranks", lambda: ranks.append(self.ranks()))
            rows = pd.concat([rows, *ranks], ignore_index=True)
        told = self._keep(rows)
        raw = rows["metric"].isin(RAW)
        if not raw.all():
            looked_at = rows[~raw].reset_index(drop=True)
            told += self._judge.look(looked_at)
            if self._sink is not None:
                self._sink.write(step, summary(looked_at, rows[raw]))
        return told

    def _keep_state(self) -> None:
        """What a run that goes on must remember."""
        if self._folder is not None:
            state = {"step": self._last, **self._judge.as_state()}
            self._try("the folder", partial(self._folder.keep_state, state))

    def _drained(self) -> pd.DataFrame:
        """Losses and gradient norms of the steps since the last look, in one transfer."""
        raw, self._raw = self._raw, []
        numbers = iter(on_host([value for _, _, value in raw if isinstance(value, Tensor)]))
        known = [next(numbers) if isinstance(value, Tensor) else value for _, _, value in raw]
        return frame(
            [
                [step, None, "", 0, None, metric, value, "", 1]
                for (step, metric, _), value in zip(raw, known, strict=True)
            ]
        )

    def _keep(self, table: pd.DataFrame) -> list[Message]:
        if table.empty:
            return []
        table = typed(table)
        if self._folder is None:
            self._tables.append(table)
        else:
            self._try("the folder", partial(self._folder.add, table))
        return self._judge.losses(table)

    def _tell(self, told: list[Message]) -> None:
        self.messages += told
        if told and self._folder is not None:
            self._try("the folder", partial(self._folder.tell, self.messages))
        for message in told:
            if self._sink is not None:
                self._sink.tell(message)
            if callable(self._on_alarm):
                self._on_alarm(message)
            elif self._on_alarm == "warn":
                warnings.warn(message.sentence(), stacklevel=3)
            else:
                _log.warning("joma: %s", message.sentence())

    # Runs that are continued

    def _resume(self, folder: Folder) -> None:
        state = folder.state()
        self._last = folder.last
        self.messages = read_messages(folder.path)
        if state is None or state["step"] < folder.last:
            # Killed between the rows and the state, the run is judged again from its rows.
            self._judge.again(folder.table())
        else:
            self._judge.restore(state)

    def _go_back(self, step: int) -> None:
        self._raw = [entry for entry in self._raw if entry[0] < step]
        self._tables = [_before(step, table) for table in self._tables]
        self.messages = [message for message in self.messages if message.step < step]
        self._looked = min(self._looked, step - 1)
        if self._folder is not None:
            self._try("the folder", partial(self._folder.cut, step))
            self._try("the folder", partial(self._folder.tell, self.messages))
        self._try("the alarm's past", lambda: self._judge.again(_before(step, self.table())))

    def _try(self, what: str, act: Callable[[], None]) -> bool:
        """Whether it went well; otherwise one line, once for each reason."""
        try:
            act()
        except Exception as error:  # nothing in a monitor may end a training run
            self._say(
                what, str(error) if isinstance(error, JomaError) else f"{type(error).__name__}: {error}"
            )
            return False
        return True

    def _say(self, what: str, reason: str) -> None:
        if reason not in self._failed:
            self._failed.add(reason)
            _log.warning("joma: %s failed: %s", what, " ".join(reason.split()))


def _before(step: int, table: pd.DataFrame) -> pd.DataFrame:
    return table[table["step"] < step]

"""``joma.Monitor``: a training loop's attention, residual stream and ranks, at a cadence, with messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from joma.core.errors import InputError, JomaError
from joma.instruments.monitor.acts.actor import Actor
from joma.instruments.monitor.acts.restore import Restore
from joma.instruments.monitor.alarms.calibration import Folders, read_reference
from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.messages import LARGE_LOGIT, Message
from joma.instruments.monitor.alarms.telling import OnAlarm, StopTraining, Teller
from joma.instruments.monitor.between import Between, judge_look, say_when
from joma.instruments.monitor.guard import Guard
from joma.instruments.monitor.measuring.blocks import residual_blocks
from joma.instruments.monitor.measuring.looks import Looks
from joma.instruments.monitor.measuring.norms import GradientNorms, Scaler
from joma.instruments.monitor.measuring.processes import Processes
from joma.instruments.monitor.measuring.rows import frame
from joma.instruments.monitor.measuring.weights import stable_ranks, why_sharded
from joma.instruments.monitor.past import open_folder
from joma.instruments.monitor.record import Record
from joma.instruments.monitor.settings import RANKS_EVERY, STATISTICS, MonitorSettings, check
from joma.instruments.monitor.sinks import Sink, Trackers, sink_of
from joma.instruments.watch.measuring import check_statistics

__all__ = ["Monitor", "MonitorSettings", "StopTraining"]


class Monitor:
    """Watch a model train: ``with joma.Monitor(model) as monitor: ... monitor.step(step, loss=loss)``.

    At every ``every``-th step the forward passes in training mode are measured beside the model, whose
    outputs and gradients stay the same bit for bit; between them nothing is attached to the model, and
    losses stay on their device. A pass that raised does not count. Under several processes
    (``torch.distributed``) each measures its share of the batch; their looks are joined, and the first
    writes. Whatever goes wrong in the monitor costs one look at most and is one line of the log ``joma``;
    training goes on. A copy of a monitor keeps what was measured in memory, and looks at nothing that
    is open.

    Args:
        model: any module, compiled ones as well (they run uncompiled at a step that is looked at).
        every: steps between looks, at least 1.
        statistics: of the attention, as for ``joma.watch``; per head, means over rows
            (``largest_logit``: the largest).
        layers: which attentions, as for ``joma.watch``. None: all.
        rows: which share of the query rows, likewise.
        log: where numbers go besides the folder (see ``joma.instruments.monitor.sinks.sink_of``).
        folder: where everything is kept, in small Parquet files, for this monitor only; None: in memory.
        ranks_every: looks between two readings of the stable rank of each lower MLP and of W_Q^T W_K; None:
            none. Weights of which a process holds a share only (FSDP2, ZeRO) are left out, and their
            gradients' norm is what the loop gives.
        steps: steps planned, for the alarm's bound. None: 100,000.
        alpha: probability that a healthy run alarms, within the planned steps.
        on_alarm: ``"log"``, ``"warn"``, ``"stop"`` (``step`` raises ``StopTraining``), a function, or an
            act, which is recorded: ``"qk_clip"`` (W_Q and W_K of heads whose largest logit is beyond
            ``clip_at`` are scaled back, and each step is looked at, until 100 steps have passed without),
            ``"lower_rate"`` (a tenth of what the schedule says), ``"lower_qk_rate"`` (of W_Q and W_K alone),
            ``"restore"`` (the last quiet checkpoint). Of several in order each alarm takes the next act; one
            that cannot be done gives way. Other messages are told in the same way, but do not stop or act.
        on_state: likewise for states (a head on one key, a logit beyond 100). None: as ``on_alarm``, but
            they do not stop or act.
        scaler: the loop's ``torch.amp.GradScaler``; the gradients' norm is divided by its scale.
        optimizer: the model's; None: the one that the first look sees.
        restore: for that act: a function of the last quiet step, or a folder of checkpoints whose names tell
            their steps.
        clip_at: largest logit that a clip leaves alone.
        reference: folders of healthy runs of this network at this cadence, or the file that ``joma monitor
            --calibrate`` wrote: alarms are raised where a run like them would hardly come.
        growth: whether growth of W_Q^T W_K between looks is an alarm, not a mere message.

    Raises:
        InputError: a model that is not a module, a cadence below 1, an unknown statistic or sink.
        RunDirectoryError: a folder that holds something else, or that another monitor uses.

    Examples:
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> with joma.Monitor(model, every=5) as monitor:
        ...     for step in range(10):
        ...         loss = model(torch.randn(4, 6, 8)).square().mean()
        ...         loss.backward()
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
        log: Sink | Trackers | str | None = None,
        folder: str | Path | None = None,
        ranks_every: int | None = RANKS_EVERY,
        steps: int | None = None,
        alpha: float = 0.05,
        on_alarm: OnAlarm = "log",
        on_state: OnAlarm | None = None,
        scaler: Scaler | None = None,
        optimizer: Optimizer | None = None,
        restore: Restore | None = None,
        clip_at: float = LARGE_LOGIT,
        reference: Folders | None = None,
        growth: bool = False,
    ) -> None:
        check(model, every, ranks_every, steps, alpha)
        self.every = every
        self.messages: list[Message] = []
        self._model = model
        self._statistics = check_statistics(statistics)
        self._blocks = residual_blocks(model)
        self._guard = Guard()
        self._record = Record(self._guard)
        self._judge = Judge(looks=-(-(steps or 100_000) // every), alpha=alpha)
        self._judge.growth.kind = "alarm" if growth else "not judged"
        self._norms = GradientNorms(model, scaler)
        self._planned = steps
        self._ranks_every = ranks_every
        self._due = False
        self._rate: float | None = None
        """The learning rate of the last optimizer step that a look saw."""
        self._last = -1
        self._looked = -1
        """The last step that was looked at, or came before the first one."""
        sink = sink_of(log)
        # Checked before anything waits for other processes.
        acts = Teller(None, on_alarm, on_state).acts
        self._actor = Actor(model, acts, optimizer=optimizer, restore=restore, limit=clip_at)
        if reference is not None:
            self._judge.hold_against(read_reference(reference), type(model).__name__, every)
        settings = (model, self._statistics, layers, rows, self._blocks)
        self._looks = Looks(*settings, self._norms, self._after_optimizer, self._guard)
        self.processes = Processes(self._guard, f"{type(model).__name__} every {every}: {self._statistics}")
        self._sink = sink if self.processes.first else None
        self._teller = Teller(self._sink, on_alarm, on_state)
        together = self.processes.together
        self._between = Between(model, self._blocks, self._guard, reads=self.processes.first, waits=together)
        problem: JomaError | None = None
        if folder is not None and self.processes.first:
            facts = {"model": type(model).__name__, "statistics": list(self._statistics), "every": every}
            try:
                self._judge, self.messages = open_folder(
                    folder, facts, self._record, self._judge, self._guard
                )
                self._last = 0 if self._record.folder is None else self._record.folder.last
            except JomaError as error:
                problem = error
                self._record.release()
        # All processes begin at one step, or none does.
        self._last, problem = self.processes.of_first((self._last, problem))
        if problem is not None:
            raise problem

    def __repr__(self) -> str:
        where = "in memory" if self._record.folder is None else f"in {self._record.folder.path}"
        told = f"{len(self.messages)} message{'' if len(self.messages) == 1 else 's'}"
        name = f"Monitor of {type(self._model).__name__}"
        return f"<{name} at step {self._last}, every {self.every} steps, {told}, {where}; see table()>"

    def __getstate__(self) -> dict[str, Any]:
        # A copy, or a pickle, has what was measured; hooks, locks and trackers stay with the original.
        record = Record(guard := Guard())
        self._guard.attempt("a copy of the monitor", lambda: record.tables.append(self.table()))
        teller = Teller(None, "log", None)
        own = {"_teller": teller, "_record": record, "_guard": guard}
        return {**vars(self), "_due": False, "_sink": None, **own}

    def __enter__(self) -> Self:
        self.begin(self._last + 1)
        return self

    def begin(self, step: int) -> None:
        """The next optimizer step has this number; it is looked at if its turn has come."""
        if step <= self._last:
            self._go_back(step)
        self._last = self._looked = step - 1
        self._shut_look()
        self._open(step)
        if self.processes.first:
            say_when(self._judge, self._last + 1, self.every, self._planned, self._guard)

    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def step(
        self,
        step: int | None = None,
        *,
        loss: Tensor | float | None = None,
        grad_norm: Tensor | float | None = None,
        scaler: Scaler | None = None,
    ) -> None:
        """One optimizer step is done. Gradients that are still there are measured.

        At each look their norm is held against that after the backward pass. Where it is another one (scaled,
        clipped, zero) this is said, and from there on it is recorded as it was then, at looks only.

        Args:
            step: its number, growing; None: one more than the last. A smaller one (a run that went back to
                a checkpoint) replaces what was measured from there on.
            loss: of this step, kept on its device until the next look.
            grad_norm: where the loop has it already.
            scaler: of this step's loss, where it is not that of the monitor.

        Raises:
            StopTraining: with ``on_alarm="stop"``, at an alarm; with ``on_state="stop"``, at a state.
        """
        if grad_norm is not None:
            self.done(step, loss=loss, grad_norm=grad_norm)
            return
        norm = self.gradient_norm(scaler)
        if self._due and (look := self._looks.look) is not None:
            self._guard.attempt(
                "the gradient norm",
                partial(self._norms.hold, look.backwards, norm, loss, self._record, self._guard),
            )
            self.done(step, loss=loss, grad_norm=self._norms.held if self._norms.only_at_looks else norm)
            return
        self.done(step, loss=loss, grad_norm=norm)

    def done(
        self,
        step: int | None = None,
        *,
        loss: Tensor | float | None = None,
        grad_norm: Tensor | float | None = None,
    ) -> None:
        """One optimizer step is done, of which nothing more is known: ``step`` without measuring."""
        now = self._last + 1 if step is None else int(step)
        if now <= self._last:
            self._go_back(now)
        self._last = now
        self.note(now, loss=loss, grad_norm=grad_norm)
        self._hear(self._between.step(now, self._judge, self._actor.optimizer))
        if self._due:
            self._take(now)
        self._open(now + 1)

    def gradient_norm(self, scaler: Scaler | None = None) -> Tensor | None:
        """The 2-norm of the gradients that are there, on their device; None where it is not to be had."""
        found: list[Tensor | None] = []
        self._guard.attempt("the gradient norm", lambda: found.append(self._norms.at_step(scaler)))
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
                note = partial(self._record.note, step, metric, value)
                self._guard.attempt(f"the {metric.replace('_', ' ')}", note)

    def replace_losses(self, after: int, reason: str) -> None:
        """Forget the losses of the steps after this one: for this reason they are not what is trained."""
        self._guard.say("the loss", reason)
        self._record.forget("loss", after)
        self.messages = [one for one in self.messages if one.metric != "loss" or one.step <= after]
        self._judge.loss = type(self._judge.loss)()
        self._record.tell(self.messages)

    def table(self) -> pd.DataFrame:
        """Everything measured so far, one row per measurement, with the columns ``rows.COLUMNS``.

        Raises:
            RunDirectoryError: a damaged file of the folder.
        """
        return self._record.table()

    def ranks(self) -> pd.DataFrame:
        """The stable ranks of the weights as they are now, as rows of ``table``.

        Raises:
            InputError: weights of which this process holds a share only, or that no name tells apart.
        """
        if reason := why_sharded(self._model):
            raise InputError(f"{reason}; they are left out.")
        return stable_ranks(self._model, self._last, self._blocks)

    def close(self) -> None:
        """Write what is pending, merge the folder's parts, leave model and optimizer as they were."""
        self._shut_look()
        self._actor.close()
        rows, told = self._between.drain(self._judge)
        rows = pd.concat([self._record.drain(), rows], ignore_index=True)
        self._guard.attempt(
            "the monitor", lambda: told.extend(self._judge_rows(self._last, rows, ranks=False))
        )
        self._record.merge()
        self._record.keep_state(self._last, self._judge.as_state)
        self._tell(told)
        self._record.release()

    # One look

    def _open(self, following: int) -> None:
        # Due on every process alike, whether its look opens or not: their looks are joined.
        self._due = following // self.every > self._looked // self.every or self._actor.looks
        if self._due:
            self._looks.open()

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        self._actor.optimizer = self._actor.optimizer or optimizer
        rates = (float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        self._rate = max(rates, default=None)

    def _shut_look(self) -> None:
        self._looks.close()

    def _take(self, step: int) -> None:
        planned = step // self.every > self._looked // self.every
        own: list[pd.DataFrame] = []
        told: list[Message] = []
        if planned:
            self._looked = step
            self._guard.attempt("a look", lambda: own.append(self._record.drain()))
        self._guard.attempt("a look", lambda: own.append(self._rows_of_look(step)))
        if planned:
            between, told = self._between.drain(self._judge)
            own.append(between)
        # Every process joins in, whatever went wrong in it, or the others would wait for it.
        rows = self.processes.join(pd.concat([frame([]), *own], ignore_index=True))
        if self.processes.first and planned:
            self._guard.attempt("the monitor", lambda: told.extend(self._judge_rows(step, rows)))
            self._record.keep_state(self._last, self._judge.as_state)
        self._hear(told, rows)

    def _hear(self, told: list[Message], rows: pd.DataFrame | None = None) -> None:
        """Act upon it, tell it, end the training where it says so; ``rows``: of a look, in every process."""
        if told or rows is not None:
            self._guard.attempt("an act", lambda: told.extend(self._act(told, rows)))
        self._tell(told)
        if self._teller.stops and (told or rows is not None):
            # One process decides for all: if one stopped alone, the others would wait for it.
            stopper = self._teller.stopper(told)
            stopper = stopper if rows is None else self.processes.of_first(stopper)
            if stopper is not None:
                self.close()
                raise StopTraining(stopper)

    def _act(self, told: list[Message], rows: pd.DataFrame | None) -> list[Message]:
        if not self._actor.acts:
            return []
        alarms = [message for message in told if message.kind == "alarm"]
        alarms = alarms if rows is None else self.processes.of_first(alarms)
        acted = self._actor.act(alarms, self._last, rows, self._between.gauge.products)
        if alarms and acted:
            self._judge.arm()
        return acted if self.processes.first else []

    def _rows_of_look(self, step: int) -> pd.DataFrame:
        rows, seen = self._looks.take(step)
        self._between.search(seen, self._judge)
        return rows

    def _judge_rows(self, step: int, rows: pd.DataFrame, *, ranks: bool = True) -> list[Message]:
        if ranks and self._ranks_every and (step // self.every) % self._ranks_every == 0:
            own: list[pd.DataFrame] = []
            self._guard.attempt("the stable ranks", lambda: own.append(self.ranks()))
            rows = pd.concat([rows, *own], ignore_index=True)
        return judge_look(step, rows, self._record, self._judge, self._sink, self._rate)

    def _tell(self, told: list[Message]) -> None:
        self.messages += told
        if told:
            self._record.tell(self.messages)
        self._teller.tell(told)

    # Runs that are continued

    def _go_back(self, step: int) -> None:
        self._record.cut(step)
        self._between.forget(step)
        self.messages = [message for message in self.messages if message.step < step]
        self._looked = min(self._looked, step - 1)
        self._record.tell(self.messages)
        self._guard.attempt(
            "the alarm's past", lambda: self._judge.replay(self.table().loc[lambda rows: rows["step"] < step])
        )

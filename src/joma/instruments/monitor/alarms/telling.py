"""Who hears of a monitor's messages, and which of them end a training."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from joma.core.errors import InputError
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.sinks import Destination

OnAlarm = Literal["log", "warn", "stop"] | Callable[[Message], None]
_log = logging.getLogger("joma")


class StopTraining(Exception):
    """Raised by ``joma.Monitor.step`` where an alarm, or a state, is to stop; ``message`` says why."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.sentence())
        self.message = message


class Teller:
    """Hands messages on.

    Args:
        sink: a tracker with alerts of its own.
        on_alarm: what an alarm does; states and other messages too, but for stopping.
        on_state: what a state does; None: as an alarm, but for stopping.

    Raises:
        InputError: an unknown word.
    """

    def __init__(self, sink: Destination | None, on_alarm: OnAlarm, on_state: OnAlarm | None) -> None:
        for name, act in (("on_alarm", on_alarm), ("on_state", on_state)):
            if not (callable(act) or act in ("log", "warn", "stop") or (name == "on_state" and act is None)):
                raise InputError(f"{name} = {act!r} in Monitor; give 'log', 'warn', 'stop' or a function.")
        self._sink = sink
        self._on_alarm, self._on_state = on_alarm, on_state
        self.stops = "stop" in (on_alarm, on_state)
        """Whether some message may end the training."""

    def tell(self, messages: Sequence[Message]) -> None:
        """Hand each on, to whoever wants it."""
        for message in messages:
            if self._sink is not None:
                self._sink.tell(message)
            act = self._act(message)
            if callable(act):
                act(message)
            elif act == "warn":
                warnings.warn(message.sentence(), stacklevel=4)
            else:
                _log.warning("joma: %s", message.sentence())

    def stopper(self, messages: Sequence[Message]) -> Message | None:
        """The first of them that ends the training."""
        wanted = {"alarm": self._on_alarm, "state": self._on_state}
        return next((message for message in messages if wanted.get(message.kind) == "stop"), None)

    def _act(self, message: Message) -> OnAlarm:
        return self._on_state if message.kind == "state" and self._on_state is not None else self._on_alarm

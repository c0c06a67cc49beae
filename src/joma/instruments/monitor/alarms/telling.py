"""Who hears of a monitor's messages, and which of them end a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

from joma.core.errors import InputError
from joma.core.printing import one_line_of
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.guard import LOG
from joma.instruments.monitor.sinks import Destination

Act = Literal["log", "warn", "stop", "qk_clip", "lower_rate", "lower_qk_rate", "restore"]
OnAlarm = Act | Callable[[Message], None] | Sequence[Act | Callable[[Message], None]]
ACTS = ("qk_clip", "lower_rate", "lower_qk_rate", "restore")
"""What is done to the model or its optimizer; all else tells or stops."""
_WORDS = ("log", "warn", "stop")


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
        self._on_alarm = _in_order("on_alarm", on_alarm, (*_WORDS, *ACTS))
        self._on_state = None if on_state is None else _in_order("on_state", on_state, _WORDS)
        self._sink = sink
        self.stops = "stop" in (*self._on_alarm, *(self._on_state or ()))
        """Whether some message may end the training."""
        self.acts = [word for word in self._on_alarm if isinstance(word, str) and word in ACTS]
        """What an alarm does to the model or its optimizer, in order."""

    def tell(self, messages: Sequence[Message]) -> None:
        """Hand each on, to whoever wants it."""
        for message in messages:
            if self._sink is not None:
                self._sink.tell(message)
            ways = self._ways(message)
            for way in ways:
                if callable(way):
                    way(message)
            if "warn" in ways:
                warnings.warn(one_line_of(message.sentence()), stacklevel=4)
            elif "log" in ways or not any(map(callable, ways)):
                LOG.warning("joma: %s", message.sentence())

    def stopper(self, messages: Sequence[Message]) -> Message | None:
        """The first of them that ends the training."""
        wanted = {"alarm": self._on_alarm, "state": self._on_state or ()}
        return next((message for message in messages if "stop" in wanted.get(message.kind, ())), None)

    def _ways(self, message: Message) -> tuple[object, ...]:
        return self._on_state if message.kind == "state" and self._on_state is not None else self._on_alarm


def _in_order(name: str, given: object, words: tuple[str, ...]) -> tuple[object, ...]:
    """One way, or several in order, each a function or one of the words."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in several or (given,):
        if not (callable(one) or (isinstance(one, str) and one in words)):
            named = ", ".join(map(repr, words))
            raise InputError(f"{name} = {given!r} in Monitor; give {named}, a function, or several in order.")
    return several

"""Whatever goes wrong in a monitor is one line of the log ``joma``; training goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable

from joma.core.errors import one_line, words_of
from joma.core.printing import one_line_of


class _Harmless(logging.Filter):
    """Whatever a record says, it is one line without control characters."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = one_line_of(record.getMessage()), ()
        return True


LOG = logging.getLogger("joma")
LOG.addFilter(_Harmless())


class Guard:
    """Runs what may fail, and says once what failed."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def attempt(self, what: str, act: Callable[[], None]) -> bool:
        """Whether it went well; otherwise one line, once for each reason."""
        try:
            act()
        except Exception as error:  # nothing in a monitor may end a training run
            self.say(f"{what} failed", words_of(error))
            return False
        return True

    def say(self, what: str, reason: str) -> None:
        """One line, once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            LOG.warning("joma: %s: %s", what, one_line(reason))

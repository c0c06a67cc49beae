"""What a monitor's folder lets a run that goes on remember."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joma.core.errors import InputError, JomaError, words_of
from joma.core.files import user_path
from joma.instruments.monitor.alarms.judge import Judge
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.folder import Folder, read_messages, read_state
from joma.instruments.monitor.guard import Guard
from joma.instruments.monitor.record import Record


def open_folder(
    folder: str | Path, facts: dict[str, Any], record: Record, judge: Judge, guard: Guard
) -> tuple[Judge, list[Message]]:
    """Let a record be kept in a folder, and go on where it ends.

    Raises:
        RunDirectoryError: as ``Folder.open``.
    """
    # A loop may change its working directory.
    record.folder = Folder.open(user_path(folder).absolute(), facts)
    return continue_past(record.folder, judge, int(facts["every"]), guard)


def continue_past(folder: Folder, judge: Judge, every: int, guard: Guard) -> tuple[Judge, list[Message]]:
    """The judge of the run so far, and its messages; what is unreadable is said, and learnt from the
    record.
    """
    messages: list[Message] = []
    try:
        messages = read_messages(folder.path)
    except JomaError as error:
        guard.say("the folder", f"{error} The record is kept; messages begin anew")
    try:
        state = read_state(folder.path)
        if state is None:
            raise InputError("the run was broken off before its state was written")
        found = judge.restore(state)
        if state["step"] < folder.last:
            # Killed between the rows and the state: what came after it is judged again.
            table = folder.table()
            found.further(table[table["step"] > state["step"]])
        elif state["step"] > folder.last + every:
            raise InputError("it is ahead of the record")
        return found, messages
    except Exception as error:  # whatever lies there must not end a training run
        if folder.last >= 0:
            if not isinstance(error, InputError):
                reason = f"state.json in {folder.path} is unreadable ({words_of(error)})"
                guard.say("the folder", f"{reason}; what it held is learnt anew from the record")
            guard.attempt("the alarm's past", lambda: judge.replay(folder.table()))
    return judge, messages

"""A monitor's folder: small Parquet parts while the run goes on, one table when it ends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from joma.core.errors import InputError, RunDirectoryError
from joma.core.files import parse_json, read_bytes, whole_file, write_text
from joma.instruments.monitor.messages import Message
from joma.instruments.monitor.rows import COLUMNS

_FACTS, _TABLE, _STATE = "monitor.json", "monitor.parquet", "state.json"
_MESSAGES = "messages.json"
_PART = re.compile(r"part-(\d{9})\.parquet")
VERSION = 3


@dataclass
class Folder:
    """Where a run's numbers lie. ``last`` is the last step in it, -1 for none."""

    path: Path
    last: int = -1
    _pending: list[pd.DataFrame] = field(default_factory=list)
    _following: int = -1
    """The next part's number; -1 before the first."""

    @classmethod
    def opened(cls, path: Path, facts: dict[str, Any]) -> Folder:
        """A new folder, or that of the same run, to be continued.

        Raises:
            RunDirectoryError: the folder holds something else, or another run.
        """
        there = path / _FACTS
        if there.exists():
            known = _read(there)
            changed = [key for key in sorted({*known, *facts}) if known.get(key) != facts.get(key)]
            if changed:
                key = changed[0]
                raise RunDirectoryError(
                    f"{path} holds the monitor of another run ({key} was {known.get(key)!r}, now it is "
                    f"{facts.get(key)!r}); choose another folder."
                )
            table = read_table(path)
            return cls(path, int(table["step"].max()) if len(table) else -1)
        if path.exists() and any(path.iterdir()):
            raise RunDirectoryError(f"{path} is not empty and no monitor's folder; choose another.")
        write_text(there, json.dumps(facts, indent=1))
        return cls(path)

    def add(self, table: pd.DataFrame) -> None:
        """Write one part, whole; what could not be written before goes along.

        Raises:
            RunDirectoryError, UnfinishedError: the disk; the rows are kept for the next try.
        """
        if table.empty:
            return
        self._pending.append(table)
        joined = pd.concat(self._pending, ignore_index=True)
        if self._following < 0:  # a folder of many parts is not listed for each
            parts = _parts(self.path)
            self._following = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        _write(self.path / f"part-{self._following:09d}.parquet", joined)
        self._following += 1
        self._pending.clear()
        self.last = max(self.last, int(joined["step"].max()))

    def table(self) -> pd.DataFrame:
        """Everything measured so far, and what could not be written yet.

        Raises:
            RunDirectoryError: a damaged file.
        """
        return pd.concat([read_table(self.path), *self._pending], ignore_index=True)

    def cut(self, step: int) -> None:
        """Forget this step and all after it: a run that is resumed from before them takes them anew."""
        self._pending = [rows[rows["step"] < step] for rows in self._pending]
        table = read_table(self.path)
        kept = table[table["step"] < step]
        _write(self.path / _TABLE, kept)
        for part in _parts(self.path):
            part.unlink()
        self.last = int(kept["step"].max()) if len(kept) else -1

    def merge(self) -> None:
        """All parts in one table."""
        parts = _parts(self.path)
        if parts:
            _write(self.path / _TABLE, read_table(self.path))
            for part in parts:
                part.unlink()

    def keep_state(self, state: dict[str, Any]) -> None:
        """What a resumed run must remember."""
        write_text(self.path / _STATE, json.dumps(state))

    def tell(self, messages: list[Message]) -> None:
        """All messages so far."""
        write_text(self.path / _MESSAGES, json.dumps([message.as_dict() for message in messages], indent=1))

    def state(self) -> dict[str, Any] | None:
        """What was kept, or None."""
        return read_state(self.path)


def read_table(path: Path) -> pd.DataFrame:
    """Everything measured so far, merged or not: one row per measurement, in order of steps.

    Raises:
        InputError: no monitor's folder.
        RunDirectoryError: a damaged file.
    """
    if not is_monitored(path):
        raise InputError(
            f"{path} is no monitor's folder: it has no {_FACTS}; give the folder of joma.Monitor."
        )
    files = [file for file in (path / _TABLE, *_parts(path)) if file.exists()]
    tables = []
    for file in files:
        try:
            tables.append(pd.read_parquet(file))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RunDirectoryError(
                f"{file} is damaged ({reason}); delete it to go on without it."
            ) from error
    if not tables:
        return pd.DataFrame(columns=list(COLUMNS))
    keys = ["step", "layer", "module", "call", "head", "metric"]
    table = pd.concat(tables, ignore_index=True).drop_duplicates(keys, keep="last")
    return table.sort_values("step", kind="stable", ignore_index=True)


def read_state(path: Path) -> dict[str, Any] | None:
    """What a resumed run must remember: the detectors; None before the first look."""
    return _read(path / _STATE) if (path / _STATE).exists() else None


def is_monitored(path: Path) -> bool:
    """Whether a monitor has written there."""
    return (path / _FACTS).is_file()


def read_messages(path: Path) -> list[Message]:
    """What the monitor has said so far.

    Raises:
        RunDirectoryError: a damaged file.
    """
    file = path / _MESSAGES
    if not file.exists():
        return []
    try:
        content: Any = parse_json(read_bytes(file), finite=False)
        if not isinstance(content, list):
            raise ValueError("it holds no list")
        return [Message(**fields) for fields in content]
    except (InputError, ValueError, TypeError) as error:
        raise RunDirectoryError(f"{file} is damaged ({error}); delete it to go on without it.") from error


def read_facts(path: Path) -> dict[str, Any]:
    """What the run is: model, cadence, statistics.

    Raises:
        RunDirectoryError: a damaged file, or a folder that another version wrote.
    """
    facts = _read(path / _FACTS)
    if facts.get("version") != VERSION:
        raise RunDirectoryError(
            f"{path} was written in version {facts.get('version')} of a monitor's folder, and this joma "
            f"reads version {VERSION}; read it with the joma that wrote it."
        )
    return facts


def _parts(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if _PART.fullmatch(file.name) and not file.is_symlink())


def _write(path: Path, table: pd.DataFrame) -> None:
    with whole_file(path) as temporary:
        table.to_parquet(temporary, index=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_bytes(path), finite=False)
    except (InputError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be read ({error}).") from error
    if not isinstance(content, dict):
        raise RunDirectoryError(f"{path} does not describe a monitored run.")
    return content

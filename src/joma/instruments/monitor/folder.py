"""A monitor's folder: small Parquet parts while the run goes on, one table when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock, Timeout

from joma.core.errors import InputError, RunDirectoryError, abbreviate, first_line
from joma.core.files import digest_of, parse_json, read_bytes, refuse_irregular, whole_file, write_text
from joma.core.version import __version__
from joma.instruments.monitor.alarms.messages import Message
from joma.instruments.monitor.measuring.rows import COLUMNS

_FACTS, _TABLE, _STATE, _LOCK = "monitor.json", "monitor.parquet", "state.json", ".lock"
_MESSAGES = "messages.json"
_PART = re.compile(r"(part|rows)-(\d{9})\.parquet")
"""A look's rows; those of many looks, up to that of this number."""
MERGED = 500
"""Parts that are merged into one file: a long run leaves few files."""
VERSION, _READABLE = 4, (3, 4)
_KEYS = ("step", "stack", "layer", "module", "call", "head", "metric")
_NAMES = ("stack", "module", "metric")


@dataclass
class Folder:
    """Where a run's numbers lie. ``last`` is the last step in it, -1 for none."""

    path: Path
    last: int = -1
    _pending: list[pd.DataFrame] = field(default_factory=list)
    _following: int = -1
    """The next part's number; -1 before the first."""
    _parts: int = 0
    """How many parts are not merged."""
    _lock: FileLock | None = None

    @classmethod
    def open(cls, path: Path, facts: dict[str, Any]) -> Folder:
        """A new folder, or that of the same run, to be continued; no other monitor can write there.

        Raises:
            RunDirectoryError: the folder holds something else, or another run, or is another monitor's.
        """
        there = path / _FACTS
        facts = {**facts, "version": VERSION}
        if not there.exists() and path.exists() and any(path.iterdir()):
            raise RunDirectoryError(f"{path} is not empty and is not a monitor folder; choose another.")
        folder = cls(path)
        if not there.exists():
            write_text(there, json.dumps({**facts, "versions": _versions()}, indent=1))
            folder.hold()
            return folder
        folder.hold()
        try:
            known = read_facts(path)
            both = sorted({*known, *facts} - {"version", "versions"})  # joma may have grown older in between
            changed = [key for key in both if known.get(key) != facts.get(key)]
            if changed:
                key = changed[0]
                raise RunDirectoryError(
                    f"{path} holds the monitor of another run ({key} was {known.get(key)!r}, now it is "
                    f"{facts.get(key)!r}); choose another folder."
                )
            folder.last = max(map(_last_step, _files(path)), default=-1)
            write_text(there, json.dumps({**facts, "versions": _versions()}, indent=1))
        except BaseException:
            folder.release()
            raise
        return folder

    def hold(self) -> None:
        """Keep other monitors away.

        Raises:
            RunDirectoryError: another one is there.
        """
        if self._lock is not None:
            return
        place = self.path / _LOCK
        refuse_irregular(place)
        lock = FileLock(place, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            with contextlib.suppress(InputError, UnicodeDecodeError):
                holder = read_bytes(self.path / f"{_LOCK}.holder", 200).decode()
                raise RunDirectoryError(
                    f"{self.path} is in use by the monitor of {holder}; close that one (monitor.close()), or "
                    "choose another folder."
                ) from None
            raise RunDirectoryError(f"{self.path} is in use by another monitor; choose another.") from None
        except (OSError, NotImplementedError):
            return  # a file system without locks
        self._lock = lock
        write_text(self.path / f"{_LOCK}.holder", f"process {os.getpid()} on {platform.node()}")

    def release(self) -> None:
        """Let others in."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                (self.path / f"{_LOCK}.holder").unlink(missing_ok=True)
                (self.path / _LOCK).unlink(missing_ok=True)
            lock.release()

    def add(self, table: pd.DataFrame) -> None:
        """Write one part, whole; what could not be written before goes along.

        Raises:
            RunDirectoryError, UnfinishedError: the disk; the rows are kept for the next try.
        """
        if table.empty:
            return
        self._pending.append(table)
        self.hold()
        joined = pd.concat(self._pending, ignore_index=True)
        if self._following < 0:  # a folder of many parts is not listed for each
            parts = _number_parts(self.path)
            self._following = max(parts.values(), default=-1) + 1
            self._parts = len(parts)
        _write(self.path / f"part-{self._following:09d}.parquet", joined)
        self._following += 1
        self._parts += 1
        self._pending.clear()
        self.last = max(self.last, int(joined["step"].max()))
        if self._parts >= MERGED:
            self._merge_parts()

    def _merge_parts(self) -> None:
        """The parts of many looks as one file, which counts instead of them from the moment it is there."""
        parts = [path for path in _files(self.path) if path.name.startswith("part-")]
        _write(self.path / parts[-1].name.replace("part-", "rows-"), _rows_of(parts))
        for part in parts:
            part.unlink()
        self._parts = 0

    def table(self) -> pd.DataFrame:
        """Everything measured so far, and what could not be written yet.

        Raises:
            RunDirectoryError: a damaged file.
        """
        return pd.concat([read_table(self.path), *self._pending], ignore_index=True)

    def filter(self, which: Callable[[pd.DataFrame], pd.Series[bool]]) -> None:
        """Keep the rows for which it holds."""
        self._pending = [rows[which(rows)] for rows in self._pending]
        self.hold()
        table = read_table(self.path)
        self._whole(table[which(table)])

    def merge(self) -> None:
        """All parts in one table."""
        if self._lock is not None and _number_parts(self.path):
            self._whole(read_table(self.path))

    def _whole(self, table: pd.DataFrame) -> None:
        _write(self.path / _TABLE, table)
        for part in _number_parts(self.path):
            part.unlink()
        self._parts = 0
        self.last = int(table["step"].max()) if len(table) else -1

    def keep_state(self, state: dict[str, Any]) -> None:
        """What a resumed run must remember, with its sum: one that was altered is not believed."""
        self.hold()
        text = json.dumps(state)
        write_text(self.path / _STATE, json.dumps({"sum": digest_of(text.encode()), "state": text}))

    def tell(self, messages: list[Message]) -> None:
        """All messages so far."""
        self.hold()
        write_text(self.path / _MESSAGES, json.dumps([message.as_dict() for message in messages], indent=1))


def _versions() -> dict[str, str]:
    """What wrote the folder."""
    return {"joma": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def read_table(path: Path) -> pd.DataFrame:
    """Everything measured so far, merged or not: one row per measurement, in order of steps.

    Raises:
        InputError: not a monitor folder.
        RunDirectoryError: a damaged file.
    """
    if not is_monitored(path):
        raise InputError(
            f"{path} is not a monitor folder: it has no {_FACTS}; give the folder of joma.Monitor."
        )
    files = _files(path)
    return _rows_of(files) if files else pd.DataFrame(columns=list(COLUMNS))


def _rows_of(files: list[Path]) -> pd.DataFrame:
    """The rows of these files, in order of steps; of those of one place and step the last one counts."""
    parts = []
    for file in files:
        try:
            part = pq.read_table(file, memory_map=False)
            if "stack" not in part.column_names:  # version 3 of the folder
                part = part.append_column("stack", pa.array([""] * len(part), pa.string()))
            parts.append(part.select(list(COLUMNS)).replace_schema_metadata(None))
        except (OSError, ValueError, KeyError) as error:
            raise RunDirectoryError(
                f"{file} is damaged ({first_line(error)}); delete it to go on without it."
            ) from error
    table = pa.concat_tables(parts, promote_options="permissive")
    places = {
        name: table[name].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        if name in _NAMES
        else table[name].fill_null(-1).to_numpy()
        for name in _KEYS
    }
    order = np.argsort(places["step"], kind="stable")
    differ = {name: own[order] for name, own in places.items() if len(own) and own.min() != own.max()}
    again = pd.DataFrame(differ, index=range(len(order))).duplicated(keep="last").to_numpy()
    kept = table.take(pa.array(order[~again]))
    frame: pd.DataFrame = kept.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame.astype(dict.fromkeys(("step", "call", "count"), "int64"))


def _last_step(file: Path) -> int:
    """The last step of a file's rows, as its footer tells."""
    try:
        kept = pq.read_metadata(file)
        at = kept.schema.names.index("step")
        groups = [kept.row_group(i).column(at).statistics for i in range(kept.num_row_groups)]
        return max(
            (int(group.max) for group in groups if group is not None and group.has_min_max), default=-1
        )
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"{file} is damaged ({first_line(error)}); delete it to go on without it."
        ) from error


def read_state(path: Path) -> dict[str, Any] | None:
    """What a resumed run must remember: the detectors; None before the first look.

    Raises:
        RunDirectoryError: it is damaged, or was altered since it was written.
    """
    file = path / _STATE
    if not file.exists():
        return None
    kept = _read(file)
    text = kept.get("state")
    if not isinstance(text, str) or kept.get("sum") != digest_of(text.encode(errors="replace")):
        raise RunDirectoryError(f"{file} is not as the monitor wrote it.")
    state: dict[str, Any] = json.loads(text)
    return state


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
    if facts.get("version") not in _READABLE:
        raise RunDirectoryError(
            f"{path} was written in version {facts.get('version')} of a monitor's folder, and this joma "
            f"reads versions {_READABLE[0]} to {VERSION}; read it with the joma that wrote it."
        )
    every = facts.get("every")
    if not (isinstance(every, int) and every > 0):
        raise RunDirectoryError(
            f"{path / _FACTS} says that every {abbreviate(repr(every))} steps were looked at, which is no "
            "number of steps: it was edited, or is damaged."
        )
    return facts


def _number_parts(path: Path) -> dict[Path, int]:
    """The files of rows beside the table, with their numbers."""
    found = {file: _PART.fullmatch(file.name) for file in path.iterdir() if not file.is_symlink()}
    return {file: int(match[2]) for file, match in found.items() if match}


def _files(path: Path) -> list[Path]:
    """The files that hold rows, from the oldest on; parts that are merged already do not count."""
    numbered = sorted(_number_parts(path).items(), key=lambda entry: (entry[1], entry[0].name))
    merged = max((number for file, number in numbered if file.name.startswith("rows-")), default=-1)
    own = [file for file, number in numbered if file.name.startswith("rows-") or number > merged]
    table = path / _TABLE
    return [table, *own] if table.exists() else own


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

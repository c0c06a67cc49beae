"""One cell of a sweep: computed in a directory beside its own, which takes its place when it is finished.

It is a pure function of its settings: whoever computes it, wherever and however often, the same directory
comes of it, and it is never handed back but as its path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from filelock import FileLock

from joma.core.errors import DiskFullError, JomaError, RunDirectoryError, first_line, one_line
from joma.core.files import storage_error
from joma.core.progress import in_turn
from joma.runs.description import check_identity, describe, read_description
from joma.runs.directory import write_unjudged
from joma.runs.job import Job
from joma.runs.parts import RunProgress, tidy_up
from joma.runs.tables import check_file, read_table
from joma.sweeps.grid import key


@dataclass(frozen=True)
class FailedCell:
    """A cell that could not be computed."""

    error: str
    ends_all: bool
    """The others would fail the same way: the disk is full."""


def compute_cell(cell: Job, folder: Path) -> str | FailedCell:
    """Compute a cell below ``folder``, unless it is there: its directory, or why there is none.

    Whoever else is computing it is waited for. What an earlier try left (checkpoints) is gone on with.
    """
    finished, work, lock = (folder / name.format(key(cell)) for name in ("{}", ".{}", ".{}.lock"))
    try:
        with FileLock(lock):
            if not finished.exists():  # else somebody was faster
                tidy_up(work)
                write_unjudged(cell, work, cell.run(_CellProgress(work, quiet=True, executor=in_turn)))
                work.rename(finished)
        # Whoever waits for the lock, or makes a new one, finds the cell finished.
        with contextlib.suppress(OSError):
            lock.unlink(missing_ok=True)
        return str(finished)
    except OSError as error:
        found = storage_error(error, work / "cell")
        full = isinstance(found, DiskFullError)
        return FailedCell(one_line(str(found if full else error)), ends_all=full)
    except JomaError as error:
        return FailedCell(one_line(str(error)), ends_all=isinstance(error, DiskFullError))
    except Exception as error:
        return FailedCell(f"unexpected {type(error).__name__}: {first_line(error)}", ends_all=False)


class _CellProgress(RunProgress):
    """Of a cell: its parts are computed one after the other, on the thread that it has."""

    def note_device(self, device: str, dtype: str) -> None:
        """Note it for the cell, and for the sweep."""
        super().note_device(device, dtype)
        RunProgress(self.directory.parent.parent).note_device(device, dtype)


def check_cell(cell: Job, directory: Path) -> None:
    """Raises RunDirectoryError unless the directory holds this cell, and its tables as they were written."""
    try:
        check_identity(
            directory, describe(cell, "", {}), {n: f.default for n, f in cell.fields().items()}, cell.free
        )
        description = read_description(directory) or {}
        for name, checksum in (description.get("files") or {}).items():
            if name.endswith(".parquet"):
                check_file(directory / name, checksum)
    except RunDirectoryError as error:
        raise _spoilt(directory, error) from error


def _spoilt(directory: Path, error: RunDirectoryError) -> RunDirectoryError:
    reason = str(error).partition("; ")[0]
    return RunDirectoryError(
        f"{reason}; delete the cell's directory, {directory}, and the same command computes it again."
    )


def cell_tables(directory: Path, names: Sequence[str] = ()) -> dict[str, pd.DataFrame]:
    """A finished cell's tables, or those of these names.

    Raises:
        RunDirectoryError: one of them is damaged.
    """
    paths = [directory / f"{name}.parquet" for name in names] or sorted(directory.glob("*.parquet"))
    try:
        return {path.stem: read_table(path) for path in paths}
    except RunDirectoryError as error:
        raise _spoilt(directory, error) from error

"""All cells of a sweep through an executor: what is there is skipped, what fails is a row with its error."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from joma.core.errors import DiskFullError, JomaError, RunDirectoryError, UnfinishedError, one_line
from joma.core.files import storage_error
from joma.core.progress import LostCall, Progress
from joma.core.threads import usable_cores
from joma.runs.job import Job
from joma.sweeps.cell import FailedCell, cell_tables, check_cell, compute_cell
from joma.sweeps.grid import DONE, FAILED, key

_NAME = re.compile("[0-9a-f]{16}")
TRIES = 3
"""Of a cell whose worker dies, in one call."""


def compute_cells(cells: Sequence[Job], folder: Path, progress: Progress, label: str) -> pd.DataFrame:
    """Compute what is not there yet below ``folder``: one row per cell, ``cell, status, error``.

    A cell that fails lets the others go on; one whose worker dies is tried again, from its checkpoints.

    Raises:
        UnfinishedError: the disk is full.
        RunDirectoryError: nothing can be written, or what a worker wrote is not to be seen from here.
    """
    folder = folder.absolute()  # wherever the workers are
    errors: dict[int, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder) from error
    there = finished_cells(folder)
    left = []
    for number, cell in enumerate(cells):
        if key(cell) not in there:
            left.append(number)
            continue
        try:
            check_cell(cell, folder / key(cell))
        except JomaError as error:  # it is named, and the others count
            errors[number] = one_line(str(error))
    said = _BarLabel(label)
    said.failed = len(errors)
    for attempt in range(TRIES):
        lost: dict[int, str] = {}
        for number, outcome in _outcomes(cells, left, folder, progress, said):
            if isinstance(outcome, LostCall):
                lost[number] = f"its worker died ({outcome.reason}), {attempt + 1} times"
                continue
            if isinstance(outcome, FailedCell):
                if outcome.ends_all:
                    raise DiskFullError(outcome.error)
                errors[number] = outcome.error
                said.failed += 1
            elif not Path(outcome).is_dir():
                raise UnfinishedError(
                    f"a worker wrote {outcome}, which is not to be seen from here; give an --out that all "
                    f"machines share."
                )
        left = sorted(lost)
        if not left:
            break
    errors |= lost if left else {}
    return pd.DataFrame(
        [
            {"cell": key(cell), "status": FAILED if n in errors else DONE, "error": errors.get(n, "")}
            for n, cell in enumerate(cells)
        ],
        columns=["cell", "status", "error"],
    )


def at_once(cells: Sequence[Job]) -> int:
    """How many cells this machine computes at once, each on the threads that it takes."""
    threads = cells[0].threads or usable_cores()
    return max(1, min(usable_cores() // threads, len(cells)))


def _outcomes(
    cells: Sequence[Job], left: Sequence[int], folder: Path, progress: Progress, said: _BarLabel
) -> Iterator[tuple[int, str | FailedCell | LostCall]]:
    if not left:
        return
    workers = at_once([cells[number] for number in left])
    calls = [functools.partial(compute_cell, cells[number], folder) for number in left]
    computed = progress.executor(calls, workers)
    waiting = len(left)
    said.running = waiting if progress.elsewhere else workers
    done = len(cells) - len(left)
    try:
        for place, outcome in progress.track(computed, said, total=len(cells), initial=done, beats=True):
            waiting -= 1
            said.running = min(said.running, waiting)
            yield left[place], outcome
    finally:
        computed.close()


class _BarLabel:
    """What a bar says: the label, how many run (elsewhere: are to be run), and how many failed."""

    def __init__(self, label: str) -> None:
        self.label, self.failed, self.running = label, 0, 0

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.label} ({self.running} running{failed})"


def finished_cells(folder: Path) -> set[str]:
    """The names of the finished cells."""
    return (
        {path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)} if folder.is_dir() else set()
    )


def tables_of(cells: Sequence[Job], folder: Path, names: Sequence[str] = ()) -> dict[str, list[pd.DataFrame]]:
    """Name -> the tables of all finished cells, in their order, each with a column ``cell``.

    ``names``: the only ones that are read (none: all).
    """
    found: dict[str, list[pd.DataFrame]] = {}
    there = finished_cells(folder)
    for cell in cells:
        if key(cell) in there:
            tables = cell_tables(folder / key(cell), names)
            if found and set(tables) != set(found):
                raise RunDirectoryError(
                    f"{folder / key(cell)} lacks tables that other cells have; delete it, and the same "
                    f"command computes it again."
                )
            for name, table in tables.items():
                found.setdefault(name, []).append(table.assign(cell=key(cell)))
    return found

"""A run's finished parts and the checkpoints of the others, kept in its directory until it is finished."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from joma.core.errors import DivergenceError
from joma.core.files import remove_leftovers, write_text
from joma.core.progress import Executor, Progress, in_turn
from joma.runs.executors.processes import local_processes
from joma.runs.tables import read_table, write_table

_PARTS, _CHECKPOINTS, _USED = "parts", "checkpoints", ".used"
CELLS = "cells"
"""Where a sweep has its cells."""


class RunProgress(Progress):
    """Progress whose parts and checkpoints live in a run directory, and whose parts run in processes."""

    def __init__(
        self, directory: Path, *, quiet: bool = False, position: int = 0, executor: Executor = local_processes
    ) -> None:
        super().__init__(quiet=quiet, position=position, executor=executor)
        self.directory = directory
        self.elsewhere = executor not in (local_processes, in_turn)

    def part(self, name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The part's table from an earlier try, or computed and kept."""
        path = self.directory / _PARTS / f"{name}.parquet"
        if path.exists():
            return read_table(path)
        try:
            table = compute()
        except DivergenceError as error:
            if error.table is not None and len(error.table):
                rescued = path.with_name(f"{name}.until-divergence.parquet")
                write_table(rescued, error.table)
                raise DivergenceError(f"{error} What was measured before is kept in {rescued}.") from error
            raise
        write_table(path, table)
        shutil.rmtree(self.directory / _CHECKPOINTS / name, ignore_errors=True)
        return table

    def checkpoint_folder(self, name: str) -> Path | None:
        """The part's own folder below ``checkpoints/``."""
        return self.directory / _CHECKPOINTS / name

    def note_device(self, device: str, dtype: str) -> None:
        """Note what computed beside the parts, where other processes' notes are too."""
        note = f"{device} {dtype}"
        path = self.directory / _PARTS / f"{note.replace(':', '-')}{_USED}"
        if not path.exists():
            write_text(path, note)


def notes_of(directory: Path) -> list[tuple[str, str]]:
    """The devices and dtypes that the parts noted."""
    notes = sorted(path.read_text("utf-8") for path in (directory / _PARTS).glob(f"*{_USED}"))
    return [(device, dtype) for device, _, dtype in (note.partition(" ") for note in notes)]


def holds_work(directory: Path) -> bool:
    """Is there a finished part or cell, or a checkpoint of one?"""
    return any((directory / _PARTS).glob("*.parquet")) or any(
        path.is_file() and path.suffix != ".lock"
        for folder in (_CHECKPOINTS, CELLS)
        for path in (directory / folder).rglob("*.*")
    )


def tidy_up(directory: Path) -> None:
    """Remove what processes that were killed left half written."""
    for folder in (directory, directory / _PARTS, *(directory / _CHECKPOINTS).glob("*")):
        remove_leftovers(folder)


def discard(directory: Path, *, parts: bool = True) -> None:
    """Remove checkpoints, and parts and cells."""
    for folder in (_PARTS, CELLS, _CHECKPOINTS) if parts else (_CHECKPOINTS,):
        if not (directory / folder).is_symlink():
            shutil.rmtree(directory / folder, ignore_errors=True)

"""``joma.sweep``: a grid of runs from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joma.core.files import user_path
from joma.core.settings import Value, as_text
from joma.runs.directory import run_experiment
from joma.runs.executors import PROCESSES, executor_of
from joma.runs.result import JobResult
from joma.sweeps import SweepSettings
from joma.sweeps.grid import as_words
from joma.sweeps.summary import curves_of, summary


@dataclass(frozen=True, repr=False)
class SweepResult(JobResult):
    """A grid of runs, finished: the tables of ``joma.sweeps.SweepSettings``."""

    settings: SweepSettings
    directory: Path
    """Where everything lies."""

    def first_table(self) -> str:
        """The name of the experiment's first table with values along steps, or ``cells``."""
        return curves_of(self.tables) or "cells"

    def cells(self) -> pd.DataFrame:
        """One row per cell: its settings, ``status`` and ``error``."""
        return self.tables["cells"]

    def summary(self, name: str = "") -> pd.DataFrame:
        """Means over seeds with their 95 % intervals."""
        return summary(self.settings, self.tables, name)


def sweep(
    experiment: str,
    grid: Mapping[str, Sequence[Value]] | None = None,
    *,
    preset: str = "quick",
    out: str | Path | None = None,
    executor: str = PROCESSES,
    quiet: bool = False,
    **settings: Value,
) -> SweepResult:
    """Run an experiment at all settings of a grid, each cell into a run directory of its own.

    What is finished is found again: the same call continues a broken sweep, and tries failed cells once more.

    Args:
        experiment: its name (see ``joma list``).
        grid: setting -> its values; default: the preset's own grid.
        preset: starting point of all other settings.
        out: the sweep's directory (default: ``runs/sweep-EXPERIMENT``).
        executor: ``processes`` of this machine, ``dask://HOST:PORT`` or ``ray://HOST:PORT``.
        quiet: no progress on stderr.
        settings: of the experiment, for all cells.

    Raises:
        InputError: no such experiment, preset, setting, value or executor; a grid that makes no sense.
        RunDirectoryError: the directory is another sweep's, or somebody else's.
        UnfinishedError: not one cell could be computed, or the disk is full.

    Examples:
        >>> found = joma.sweep("fig9", {"dimensions": [(2,), (3,)]}, quiet=True)
        >>> found.cells()["status"].tolist()
        ['done', 'done']
    """
    given = tuple(f"{name}={as_text(value)}" for name, value in sorted(settings.items()))
    job = SweepSettings(experiment=experiment, preset=preset, settings=given, grid=as_words(grid or {}))
    job.grid_cells()
    directory = user_path(out or job.directory())
    run = run_experiment(job, directory, quiet=quiet, executor=executor_of(executor))
    return SweepResult(job, run.tables, directory)

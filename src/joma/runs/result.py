"""What a job measured, as Python holds it: its settings, its tables, and what they say and show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from joma.core.claim import Claim
from joma.core.figures import drawn_in_notebooks
from joma.core.files import user_path
from joma.core.style import style
from joma.core.tables import Tables
from joma.runs.directory import Run, record_run
from joma.runs.finding import Digest, digest_of
from joma.runs.job import Job


@dataclass(frozen=True, repr=False)
class JobResult(Tables):
    """A job with the tables that it measured; every result of joma's that holds tables has these methods."""

    settings: Job
    """The settings of the job that measured the tables."""
    tables: dict[str, pd.DataFrame]
    """Tidy tables by name, one row per measurement."""

    @property
    def claims(self) -> list[Claim]:
        """The statements of the papers, judged from the tables."""
        return self.settings.claims(self.tables)

    def plot(self) -> Figure:
        """Draw the figure from the tables; change or save it as any figure of matplotlib's.

        A notebook shows the figure as a picture without further settings.
        """
        with style("light"):
            return drawn_in_notebooks(self.settings.draw(self.tables))

    def answer(self) -> list[str]:
        """State in one to three sentences what was measured."""
        return self.settings.answer(self.tables)

    def digest(self) -> Digest:
        """Return at most ten findings in order of weight: what, where, how sure, and what to look at next."""
        return digest_of(self.settings, self.tables)

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Run:
        """Write a run directory, which ``joma.read`` and ``joma report`` show.

        Args:
            directory: where the tables, the figure and the claims go.
            overwrite: whether a run that lies there is replaced.

        Raises:
            RunDirectoryError: the directory holds something already, is in use, or cannot be written.
            UnfinishedError: the disk is full.
        """
        return record_run(self.settings, user_path(directory), self.tables, overwrite=overwrite)

    def __str__(self) -> str:
        return " ".join(self.answer())

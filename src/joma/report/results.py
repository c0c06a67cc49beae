"""``joma.read``: what a run directory holds, as tables, claims and a figure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pandas

from joma.core.claim import Claim
from joma.core.errors import InputError
from joma.core.files import Json, regular, user_path
from joma.core.style import style
from joma.core.tables import Tables, frame_html
from joma.experiments import catalog
from joma.instruments.catalog import INSTRUMENTS
from joma.report.answer import answer_of, subject_of, verdict_words
from joma.runs.directory import Run, read_run
from joma.runs.job import Job
from joma.sweeps import SweepRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Result(Tables):
    """A finished run, as ``read`` gives it back."""

    def __init__(self, run: Run) -> None:
        self.directory: Path = run.directory
        """Where it lies."""
        self.settings: Mapping[str, Json] = run.settings["settings"]
        """The settings by name, as ``settings.yaml`` has them."""
        self.claims: list[Claim] = run.claims
        """What the paper states, judged."""
        self.tables: Mapping[str, pandas.DataFrame] = run.tables
        """Tidy tables by name."""
        self._run = run

    @property
    def name(self) -> str:
        """The experiment's or instrument's name."""
        return str(self._run.settings["experiment"])

    def answer(self) -> list[str]:
        """What was found, in one to three sentences."""
        return answer_of(self._run)

    def verdicts(self) -> pandas.DataFrame:
        """A row per claim: its fields (``joma.core.claim.Claim``) as columns."""
        return pandas.DataFrame([claim.as_dict() for claim in self.claims])

    def job(self) -> Job:
        """The settings as the object that was run.

        Raises:
            InputError: no run of this version's experiments and instruments (claims alone have no settings).
        """
        kind = _kind(self.name)
        fields = kind.fields()
        unknown = sorted(set(self.settings) - set(fields))
        if unknown:
            raise InputError(
                f"{self.directory} has the setting {unknown[0]!r}, which {self.name} has no more."
            )
        try:
            given = {name: fields[name].from_file(value) for name, value in self.settings.items()}
        except ValueError as error:
            raise InputError(f"{self.directory}: a setting cannot be read ({error}).") from error
        return kind.of(**given)

    def plot(self) -> Figure:
        """The figure, drawn again from the tables; change or save it as any of matplotlib's.

        Raises:
            InputError: as ``job``.
        """
        job = self.job()
        with style("light"):
            return job.draw(self.tables)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; {self.name} in {self.directory}>"

    def _repr_html_(self) -> str:
        """For notebooks: the answer, the figure, the verdicts and the names of the tables."""
        parts = [f"<p>{escape(' '.join(self.answer()))}</p>"]
        figure = self.directory / "figure.png"
        if figure.is_file() and not figure.is_symlink():
            content = base64.b64encode(regular(figure).read_bytes()).decode()
            parts.append(f'<img style="max-width: 100%" src="data:image/png;base64,{content}">')
        if self.claims:
            verdicts = self.verdicts()[["id", "statement", "measured", "null", "verdict"]]
            words = verdict_words(subject_of(self._run))
            parts.append(frame_html(verdicts.replace({"verdict": dict(words)}), "claims"))
        return "\n".join([*parts, f"<p>{escape(repr(self))}</p>"])


def read(directory: str | Path) -> Result:
    """Give a run directory back: ``.tables``, ``.claims``, ``.answer()``, ``.plot()``.

    Args:
        directory: one that ``joma run``, ``probe``, ``neurons``, ``track`` or ``check`` has written.

    Raises:
        RunDirectoryError: no run, an unfinished one, damaged files, or others in their place.
    """
    return Result(read_run(user_path(directory)))


def _kind(name: str) -> type[Job]:
    return SweepRun if name == SweepRun.name() else INSTRUMENTS.get(name) or catalog.find(name)

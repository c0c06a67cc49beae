"""``joma.run`` and ``joma.read``: a run directory as tables, claims and a figure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pandas

from joma.core.claim import Claim
from joma.core.errors import InputError
from joma.core.figures import drawn_in_notebooks
from joma.core.files import Json, read_bytes, user_path
from joma.core.settings import Value
from joma.core.style import style
from joma.core.tables import Tables, frame_html
from joma.experiments import catalog
from joma.instruments.catalog import JOBS
from joma.instruments.monitor.figure import draw_monitor
from joma.instruments.monitor.folder import is_monitored, read_messages, read_table
from joma.instruments.monitor.health import findings
from joma.instruments.monitor.page import monitored_run
from joma.report.answer import answer_of, subject_of, verdict_words
from joma.report.pictures import LARGEST_FILE
from joma.runs.directory import Run, read_run, record_run, run_experiment
from joma.runs.finding import Digest, digest_of, findings_of_claims
from joma.runs.job import Job
from joma.sweeps import SweepSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunResult(Tables):
    """A finished run, as ``joma.run`` and ``joma.read`` return it."""

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

    def digest(self) -> Digest:
        """Return at most ten findings in order of weight: what, where, how sure, and what to look at next."""
        try:
            job = self.job()
        except InputError:  # claims alone, or settings of another version
            return Digest.of(
                str(self._run.settings.get("title") or self.name), findings_of_claims(self.claims)
            )
        return digest_of(job, self.tables, self.claims)

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
            return drawn_in_notebooks(job.draw(self.tables))

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Run:
        """Write the run into another directory: tables, figure, and claims judged anew.

        Raises:
            InputError: as ``job``.
            RunDirectoryError: the directory holds something already, or cannot be written.
        """
        return record_run(self.job(), user_path(directory), self.tables, overwrite=overwrite)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; {self.name} in {self.directory}>"

    def _repr_html_(self) -> str:
        """For notebooks: the answer, the figure, the verdicts and the names of the tables."""
        parts = [f"<p>{escape(' '.join(self.answer()))}</p>"]
        figure = self.directory / "figure.png"
        if figure.is_file() and not figure.is_symlink():
            content = base64.b64encode(read_bytes(figure, LARGEST_FILE)).decode()
            parts.append(f'<img style="max-width: 100%" src="data:image/png;base64,{content}">')
        if self.claims:
            verdicts = self.verdicts()[["id", "statement", "measured", "null", "verdict"]]
            words = verdict_words(subject_of(self._run))
            parts.append(frame_html(verdicts.replace({"verdict": dict(words)}), "claims"))
        return "\n".join([*parts, f"<p>{escape(repr(self))}</p>"])


class MonitorResult(RunResult):
    """The folder of a ``joma.Monitor``, as ``joma.read`` returns it: table ``values``, and ``messages``."""

    def first_table(self) -> str:
        """``values``, every measurement so far."""
        return "values"

    def digest(self) -> Digest:
        """Return what speaks against the run, the worst first, each with its number and what to do."""
        title = str(self._run.settings["title"])
        return Digest.of(title, findings(self.tables["values"], read_messages(self.directory)))

    def plot(self) -> Figure:
        """Draw the measurements so far, with the alarms at their steps."""
        with style("light"):
            return drawn_in_notebooks(draw_monitor(self.tables["values"], read_messages(self.directory)))


def read(directory: str | Path) -> RunResult:
    """Read what a command has written: ``.tables``, ``.claims``, ``.answer()``, ``.plot()``.

    Args:
        directory: one that ``joma run``, ``probe``, ``neurons``, ``track``, ``sweep`` or ``check`` has
            written, or the folder of a ``joma.Monitor``.

    Raises:
        RunDirectoryError: no run, an unfinished one, damaged files, or others in their place.

    Examples:
        >>> joma.run("fig9", out="runs/fig9", quiet=True).name
        'fig9'
        >>> joma.read("runs/fig9").table().columns.tolist()[:2]
        ['run', 'y']
    """
    path = user_path(directory)
    if not is_monitored(path):
        return RunResult(read_run(path))
    found = MonitorResult(monitored_run(path))
    found.tables = {"values": read_table(path), **found.tables}
    return found


def run(
    name: str,
    *,
    preset: str = "quick",
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Value,
) -> RunResult:
    """Run an experiment into a directory, as ``joma run`` does, and read it.

    A run that was cut short continues where it stopped; a finished one is read.

    Args:
        name: of the experiment (see ``joma.list_experiments``).
        preset: starting point of the settings, ``quick`` or ``paper`` for most.
        out: the directory (default: ``runs/NAME``).
        overwrite: whether a run that lies there is computed anew.
        quiet: no progress on stderr.
        settings: of the experiment, in place of the preset's: ``seeds=5``.

    Raises:
        InputError: no such experiment, preset, setting or value.
        RunDirectoryError: the directory is another run's, or somebody else's.
        UnfinishedError: the disk is full, or the training diverged; finished parts are kept.

    Examples:
        >>> joma.run("fig4", quiet=True).verdicts()["verdict"].iloc[0]
        'holds'
    """
    job = catalog.find(name).from_preset(preset, **settings)
    directory = user_path(out or job.directory())
    run_experiment(job, directory, preset=preset, overwrite=overwrite, quiet=quiet)
    return RunResult(read_run(directory))


def _kind(name: str) -> type[Job]:
    return SweepSettings if name == SweepSettings.name() else JOBS.get(name) or catalog.find(name)

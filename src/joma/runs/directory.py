"""A run directory: written whole or not at all, resumable, one process at a time.

It holds ``settings.yaml`` (experiment, resolved settings, versions), the tables as Parquet,
``figure.png``, ``figure-dark.png``, ``figure.pdf``, and ``claims.json``, which is written last and
so marks a run as finished. While a run is unfinished, ``parts/`` holds its finished parts and
``checkpoints/`` the state of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.errors import DivergenceError, InputError, RunDirectoryError
from joma.files import storage_error, whole_file, write_text
from joma.progress import Progress

if TYPE_CHECKING:
    import pandas

    from joma.claim import Claim
    from joma.experiments.base import Experiment

_SETTINGS, _CLAIMS = "settings.yaml", "claims.json"
_LOCK, _HOLDER = ".lock", ".holder"
_FIGURES = ("figure.png", "figure.pdf", "figure-dark.png")


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run, read back from its directory."""

    directory: Path
    settings: dict[str, Any]
    """What ``settings.yaml`` holds: experiment, title, reproduces, settings, versions, seconds."""
    claims: list[Claim]
    tables: dict[str, pandas.DataFrame]


class RunProgress(Progress):
    """Progress whose parts and checkpoints live in a run directory."""

    def __init__(self, directory: Path, *, quiet: bool = False, position: int = 0) -> None:
        super().__init__(quiet=quiet, position=position)
        self.directory = directory

    def part(self, name: str, compute: Callable[[], pandas.DataFrame]) -> pandas.DataFrame:
        """The part's table from an earlier try, or computed and kept."""
        path = self.directory / "parts" / f"{name}.parquet"
        if path.exists():
            return _read_table(path)
        try:
            table = compute()
        except DivergenceError as error:
            if error.table is not None and len(error.table):
                rescued = path.with_name(f"{name}.until-divergence.parquet")
                _write_table(rescued, error.table)
                raise DivergenceError(f"{error} What was measured before is kept in {rescued}.") from error
            raise
        _write_table(path, table)
        shutil.rmtree(self.directory / "checkpoints" / name, ignore_errors=True)
        return table

    def checkpoint_folder(self, name: str) -> Path | None:
        """The part's own folder below ``checkpoints/``."""
        return self.directory / "checkpoints" / name


def run_experiment(
    experiment: Experiment,
    directory: Path,
    *,
    preset: str = "",
    overwrite: bool = False,
    quiet: bool = False,
) -> Run:
    """Run an experiment into a directory, or continue it there, or find it finished.

    Raises:
        RunDirectoryError: the directory is another experiment's, has other settings, is in use by
            another process, is no run directory, or cannot be written.
        UnfinishedError: the disk is full, or the training diverged; finished parts are kept.
    """
    with _held(directory):
        description = _describe(experiment, preset)
        if not (overwrite and _clear(directory)):
            _check_identity(directory, description)
        if _is_finished(directory):
            run = read_run(directory)
            if not all((directory / name).exists() for name in _FIGURES):
                _write_figures(experiment, run.tables, directory)
            return run
        if not (directory / _SETTINGS).exists():
            _write_yaml(directory / _SETTINGS, description)
        started = time.monotonic()
        try:
            tables = experiment.run(RunProgress(directory, quiet=quiet))
        except InputError:
            # A run that could not even begin leaves no claim on its directory.
            if not (directory / "parts").exists() and not (directory / "checkpoints").exists():
                (directory / _SETTINGS).unlink(missing_ok=True)
            raise
        seconds = round(time.monotonic() - started, 1)
        return _finish(experiment, directory, {**description, "seconds_of_last_try": seconds}, tables)


def record_run(
    experiment: Experiment,
    directory: Path,
    tables: Mapping[str, pandas.DataFrame],
    *,
    overwrite: bool = False,
) -> Run:
    """A run directory of tables that were measured before; one that holds a run is only written over.

    Raises:
        RunDirectoryError: the directory holds something already, is in use, or cannot be written.
        UnfinishedError: the disk is full.
    """
    with _held(directory):
        description = _describe(experiment, "")
        if not (overwrite and _clear(directory)):
            _check_identity(directory, description)
            if (directory / _SETTINGS).exists():
                raise RunDirectoryError(f"{directory} holds a run; choose another, or overwrite it.")
        _write_yaml(directory / _SETTINGS, description)
        return _finish(experiment, directory, description, tables)


def _finish(
    experiment: Experiment,
    directory: Path,
    description: Mapping[str, Any],
    tables: Mapping[str, pandas.DataFrame],
) -> Run:
    for name, table in tables.items():
        _write_table(directory / f"{name}.parquet", table)
    # Tables read back are what the figure and the claims are made of, now and later.
    tables = {name: _read_table(directory / f"{name}.parquet") for name in tables}
    _write_figures(experiment, tables, directory)
    claims = experiment.claims(tables)
    said = {"answer": experiment.answer(tables), "figure": experiment.caption()}
    _write_yaml(directory / _SETTINGS, {**description, **said, "tables": sorted(tables)})
    _write_json_claims(directory, claims)
    for leftover in ("parts", "checkpoints"):
        shutil.rmtree(directory / leftover, ignore_errors=True)
    return read_run(directory)


def write_claims(
    directory: Path,
    *,
    name: str,
    title: str,
    compute: Callable[[], list[Claim]],
    overwrite: bool = False,
) -> Run:
    """A run directory of claims alone, without settings, tables or figure; found again if finished."""
    with _held(directory):
        description = {**_environment(), "experiment": name, "title": title, "reproduces": "", "settings": {}}
        if not (overwrite and _clear(directory)):
            _check_identity(directory, description)
        if not _is_finished(directory):
            _write_yaml(directory / _SETTINGS, description)
            _write_json_claims(directory, compute())
        return read_run(directory)


def read_run(directory: Path) -> Run:
    """Read a finished run.

    Raises:
        RunDirectoryError: no run, an unfinished one, or damaged files.
    """
    from joma.claim import Claim

    description = _read_settings(directory)
    if description is None:
        raise RunDirectoryError(f"{directory} is not a run directory: it has no {_SETTINGS}.")
    if not _is_finished(directory):
        raise RunDirectoryError(
            f"the run in {directory} is not finished; continue it with: "
            f"{description.get('command', 'joma run ' + str(description['experiment']))} --out {directory}"
        )
    try:
        claims = [Claim(**fields) for fields in json.loads((directory / _CLAIMS).read_text("utf-8"))]
        if not claims:
            raise ValueError("it holds no claim")
    except (ValueError, TypeError, OSError) as error:
        raise RunDirectoryError(
            f"{directory / _CLAIMS} is damaged ({error}); delete it and run again."
        ) from error
    tables = {name: _read_table(directory / f"{name}.parquet") for name in description.get("tables", [])}
    return Run(directory, description, claims, tables)


def find_runs(directory: Path) -> list[Path]:
    """The run directories at or below a directory, unfinished ones included, in order of their names."""
    if (directory / _SETTINGS).exists():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"*/{_SETTINGS}"))


def _environment() -> dict[str, Any]:
    import torch

    import joma

    versions = {
        "joma": joma.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return {"versions": versions, "device": "cpu"}


def _describe(experiment: Experiment, preset: str) -> dict[str, Any]:
    settings = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(experiment).items()
    }
    return {
        "experiment": experiment.name(),
        "title": experiment.heading(),
        "reproduces": experiment.reproduces,
        "subject": experiment.subject,
        "preset": preset,
        "command": experiment.command(),
        "settings": settings,
        **_environment(),
    }


def _check_identity(directory: Path, description: Mapping[str, Any]) -> None:
    """Refuse a directory whose content is not this experiment with these settings."""
    there = _read_settings(directory)
    if there is None:
        others = sorted(path.name for path in directory.iterdir() if path.name not in (_LOCK, _HOLDER))
        if others:
            raise RunDirectoryError(
                f"{directory} is not empty and not a run directory (it holds {others[0]!r} "
                f"and no {_SETTINGS}); choose another --out, or delete it if it was a run."
            )
        return
    if there.get("experiment") != description["experiment"]:
        raise RunDirectoryError(
            f"{directory} is a run of {there.get('experiment')!r}, not of {description['experiment']!r}; "
            "choose another --out, or --overwrite to start over."
        )
    old, new = dict(there.get("settings") or {}), dict(description["settings"])
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if changed:
        key = changed[0]
        raise RunDirectoryError(
            f"{directory} was run with {key} = {old.get(key)!r}, now it is {new.get(key)!r}; "
            "choose another --out, or --overwrite to start over."
        )
    if not _is_finished(directory):
        for key in ("joma", "torch"):
            before = (there.get("versions") or {}).get(key)
            now = description["versions"][key]
            if before != now:
                raise RunDirectoryError(
                    f"the unfinished run in {directory} was begun with {key} {before}, "
                    f"and this is {key} {now}; use --overwrite to start over."
                )


def _clear(directory: Path) -> bool:
    """Remove a run's own files, and only those; False where there is no run."""
    description = _read_settings(directory)
    if description is None:
        return False
    for name in ("parts", "checkpoints"):
        shutil.rmtree(directory / name, ignore_errors=True)
    tables = [f"{name}.parquet" for name in description.get("tables", [])]
    for name in (_CLAIMS, *tables, *_FIGURES, _SETTINGS):
        (directory / name).unlink(missing_ok=True)
    return True


def _is_finished(directory: Path) -> bool:
    """All claims and all tables are there (what can be drawn again from them may be missing)."""
    description = _read_settings(directory) or {}
    tables = [directory / f"{name}.parquet" for name in description.get("tables", [])]
    return (directory / _CLAIMS).exists() and all(table.exists() for table in tables)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the system lets go when the process dies."""
    from filelock import FileLock, Timeout

    try:
        if directory.exists() and not directory.is_dir():
            raise RunDirectoryError(f"{directory} is a file; --out needs a directory.")
    except OSError as error:
        raise storage_error(error, directory) from error
    lock = FileLock(directory / _LOCK)
    holder = "another joma process"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        write_text(directory / _HOLDER, f"process {os.getpid()} on {platform.node()}")
    except Timeout:
        with contextlib.suppress(OSError):
            holder = (directory / _HOLDER).read_text("utf-8").strip()
        raise RunDirectoryError(
            f"{holder} is at work in {directory}; wait for it, or choose another --out."
        ) from None
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (directory / _HOLDER).unlink(missing_ok=True)
            if not (directory / _SETTINGS).exists():
                (directory / _LOCK).unlink(missing_ok=True)  # not a run's directory after all
        lock.release()


def _read_settings(directory: Path) -> dict[str, Any] | None:
    import yaml

    path = directory / _SETTINGS
    if not path.exists():
        return None
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise RunDirectoryError(f"{path} cannot be read ({str(error).splitlines()[0]}).") from error
    kinds = {"experiment": str, "settings": dict, "versions": dict, "tables": list}
    if (
        not isinstance(content, dict)
        or "experiment" not in content
        or not all(isinstance(content.get(key, kind()), kind) for key, kind in kinds.items())
    ):
        raise RunDirectoryError(
            f"{path} does not describe a run; choose another --out, or delete {directory} if it was one."
        )
    return content


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    import yaml

    write_text(path, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))


def _write_json_claims(directory: Path, claims: list[Claim]) -> None:
    write_text(
        directory / _CLAIMS, json.dumps([claim.as_dict() for claim in claims], indent=1, default=float)
    )


def _write_table(path: Path, table: pandas.DataFrame) -> None:
    with whole_file(path) as temporary:
        table.to_parquet(temporary, index=False)


def _read_table(path: Path) -> pandas.DataFrame:
    import pandas as pd
    import pyarrow as pa

    try:
        return pd.read_parquet(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunDirectoryError(f"table {path} is damaged ({reason}); delete it and run again.") from error


def _write_figures(experiment: Experiment, tables: Mapping[str, pandas.DataFrame], directory: Path) -> None:
    import logging

    from joma.reporting.figures import style

    # The PDF writer's font tools remark on the dates inside matplotlib's own fonts.
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    for theme, names in (("light", ("figure.png", "figure.pdf")), ("dark", ("figure-dark.png",))):
        with style(theme):
            figure = experiment.draw(tables)
            for name in names:
                with whole_file(directory / name) as temporary:
                    figure.savefig(temporary)

"""A run directory: written whole or not at all, resumable, one process at a time.

It holds ``settings.yaml`` (``joma.runs.description``), the tables as Parquet, ``figure.png``,
``figure-dark.png``, ``figure.pdf``, and ``claims.json``, which is written last and so marks a run as
finished. While a run is unfinished, ``parts/`` holds its finished parts and ``checkpoints/`` the state of
the others (``joma.runs.parts``). Its settings bind a directory once there is such work in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from joma.core.claim import Claim
from joma.core.errors import InputError, RunDirectoryError
from joma.core.files import (
    GIVEN,
    digest,
    parse_json,
    read_bytes,
    refuse_irregular,
    storage_error,
    whole_file,
    write_text,
)
from joma.core.memory import collect_afterwards
from joma.core.progress import Executor
from joma.core.settings import Value
from joma.core.style import style
from joma.runs.description import (
    SETTINGS,
    Description,
    check_identity,
    check_versions,
    computed_with,
    describe,
    environment,
    read_description,
    write_description,
)
from joma.runs.executors.processes import local_processes
from joma.runs.job import Job
from joma.runs.parts import RunProgress, discard, holds_work, tidy_up
from joma.runs.tables import check_file, damage_error, read_table, write_table

_CLAIMS = "claims.json"
_GROWN = ".grown"
"""Folder in which a finished run that has grown is written."""
_LOCK, _HOLDER = ".lock", ".holder"
_FIGURES = {"light": ("figure.png", "figure.pdf"), "dark": ("figure-dark.png",)}
_FIGURE_FILES = tuple(name for names in _FIGURES.values() for name in names)
_LARGEST_CLAIMS = 50_000_000


@dataclass(frozen=True)
class Run:
    """A finished run, read back from its directory."""

    directory: Path
    settings: Description
    """What ``settings.yaml`` holds: experiment, title, reproduces, settings, versions, seconds."""
    claims: list[Claim]
    tables: dict[str, pd.DataFrame]


def run_experiment(
    experiment: Job,
    directory: Path,
    *,
    preset: str = "",
    overwrite: bool = False,
    quiet: bool = False,
    executor: Executor = local_processes,
) -> Run:
    """Run a job into a directory, or continue it there, or find it finished; ``executor`` has its parts.

    Raises:
        RunDirectoryError: the directory is another job's, has other settings, is in use by
            another process, is no run directory, or cannot be written.
        UnfinishedError: the disk is full, or the training diverged; finished parts are kept.
    """
    job = experiment
    with _hold(directory):
        description = describe(job, preset, job.preset_values(preset))
        if not (overwrite and _clear(directory)):
            _check_free(directory, description, job)
        if not job.grows and _is_finished(directory):
            run = read_run(directory)
            if not all((directory / name).exists() for name in _FIGURE_FILES):
                _write_figures(job, run.tables, directory)
            return run
        check_versions(directory, description)
        if not _is_finished(directory):  # what grows stays what it is until it has grown
            write_description(directory, description)
        started = time.monotonic()
        try:
            progress = RunProgress(directory.absolute(), quiet=quiet, executor=executor)
            tables = job.run(progress)
        except BaseException:
            if not holds_work(directory) and not _is_finished(directory):
                # A run that came to nothing leaves no claim on its directory.
                discard(directory)
                (directory / SETTINGS).unlink(missing_ok=True)
            raise
        seconds = round(time.monotonic() - started, 1)
        took: Description = {"seconds_of_last_try": seconds}
        if progress.costs:
            took["seconds_of_parts"] = progress.costs
        return _finish(job, directory, {**description, **took}, tables)


def record_run(
    job: Job, directory: Path, tables: Mapping[str, pd.DataFrame], *, overwrite: bool = False
) -> Run:
    """A run directory of tables that were measured before; one that holds a run is only written over.

    Raises:
        RunDirectoryError: the directory holds something already, is in use, or cannot be written.
        UnfinishedError: the disk is full.
    """
    with _hold(directory):
        description = describe(job, "", {})
        if not (overwrite and _clear(directory)):
            _check_free(directory, description, job)
            if (directory / SETTINGS).exists():
                raise RunDirectoryError(f"{directory} holds a run; choose another, or overwrite it.")
        return _finish(job, directory, description, tables)


def write_unjudged(job: Job, directory: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """A finished run's directory with tables and settings, but neither claims nor figures: a part of more."""
    for name, table in tables.items():
        write_table(directory / f"{name}.parquet", table)
    description = {**describe(job, "", {}), **computed_with(directory, tables)}
    _conclude(directory, description, tables, [])
    discard(directory)


def write_claims(
    directory: Path,
    *,
    name: str,
    title: str,
    compute: Callable[[], list[Claim]],
    overwrite: bool = False,
) -> Run:
    """A run directory of claims alone, without settings, tables or figure; found again if finished."""
    with _hold(directory):
        description = {**environment(), "experiment": name, "title": title, "reproduces": "", "settings": {}}
        if not (overwrite and _clear(directory)):
            _check_free(directory, description, None)
        if not _is_finished(directory):
            _conclude(directory, {**description, **computed_with(directory, {})}, {}, compute())
        return read_run(directory)


def read_run(directory: Path) -> Run:
    """Read a finished run.

    Raises:
        RunDirectoryError: no run, an unfinished one, damaged files, or others in their place.
    """
    description = read_description(directory)
    if description is None:
        reason = f"it has no {SETTINGS}" if directory.exists() else "it does not exist"
        raise RunDirectoryError(f"{directory} is not a run directory: {reason}.")
    if not _is_finished(directory):
        raise RunDirectoryError(
            f"the run in {directory} is not finished; continue it with: "
            f"{description.get('command', 'joma run ' + description['experiment'])} --out {directory}"
        )
    checksums = description.get("files") or {}
    claims = _read_claims(directory / _CLAIMS, checksums.get(_CLAIMS))
    tables = {
        name: read_table(directory / f"{name}.parquet", checksums.get(f"{name}.parquet"))
        for name in description.get("tables", [])
    }
    return Run(directory, description, claims, tables)


def find_runs(directory: Path) -> list[Path]:
    """The run directories at or below a directory, unfinished ones included, in order of their names."""
    if (directory / SETTINGS).exists():
        return [directory]
    return sorted(path.parent for path in directory.glob(f"*/{SETTINGS}"))


def _finish(job: Job, directory: Path, description: Description, tables: Mapping[str, pd.DataFrame]) -> Run:
    # What has grown is written whole beside what it was, which a full disk leaves as it is.
    place = directory / _GROWN if _is_finished(directory) else directory
    (place / _CLAIMS).unlink(missing_ok=True)
    for name, table in tables.items():
        write_table(place / f"{name}.parquet", table)
    # Tables read back are what the figure and the claims are made of, now and later.
    tables = {name: read_table(place / f"{name}.parquet") for name in tables}
    _write_figures(job, tables, place)
    claims = job.claims(tables)
    said = {"answer": job.answer(tables), "figure": job.caption(), **computed_with(directory, tables)}
    _conclude(place, {**description, **said}, tables, claims)
    if place != directory:
        _replace(directory, place)
    discard(directory, parts=not job.grows)
    return read_run(directory)


def _replace(directory: Path, grown: Path) -> None:
    """Put the files of a grown run in the place of the old ones, by renaming; the claims come last."""
    new = sorted(grown.iterdir(), key=lambda path: path.name == _CLAIMS)
    old = [f"{name}.parquet" for name in (read_description(directory) or {}).get("tables", [])]
    for path in new:
        refuse_irregular(directory / path.name)
    (directory / _CLAIMS).unlink(missing_ok=True)  # unfinished until all of it is the new one
    for name in set(old) - {path.name for path in new}:
        (directory / name).unlink(missing_ok=True)
    for path in new:
        os.replace(path, directory / path.name)
    grown.rmdir()


def _conclude(
    directory: Path, description: Description, tables: Mapping[str, pd.DataFrame], claims: list[Claim]
) -> None:
    """Settings with the checksums of all that follows from them, then the claims: the run is finished."""
    text = json.dumps([claim.as_dict() for claim in claims], indent=1, default=float)
    files = {f"{name}.parquet": digest(directory / f"{name}.parquet") for name in tables}
    files[_CLAIMS] = hashlib.sha256(text.encode()).hexdigest()
    write_description(directory, {**description, "tables": sorted(tables), "files": files})
    write_text(directory / _CLAIMS, text)


def _read_claims(path: Path, checksum: str | None) -> list[Claim]:
    check_file(path, checksum)
    try:
        content: Any = parse_json(read_bytes(path, _LARGEST_CLAIMS), finite=False)
        if not isinstance(content, list):
            raise ValueError("it holds no list")
        return [Claim.from_dict(fields) for fields in content]
    except (ValueError, TypeError) as error:
        raise damage_error(path, str(error)) from error


def _check_free(directory: Path, description: Description, job: Job | None) -> None:
    """Refuse a directory whose content is not this job with these settings."""
    there = read_description(directory)
    begun_by_joma = bool(there and "joma" in there.get("versions", {}))
    if (directory / _CLAIMS).exists() or holds_work(directory) or not begun_by_joma:
        defaults: dict[str, Value] = {} if job is None else {n: f.default for n, f in job.fields().items()}
        check_identity(directory, description, defaults, frozenset() if job is None else job.free)
    if there is None:
        names = sorted(path.name for path in directory.iterdir())
        others = [name for name in names if name not in (_LOCK, _HOLDER) and not name.startswith(GIVEN)]
        if others:
            raise RunDirectoryError(
                f"{directory} is not empty and not a run directory (it holds {others[0]!r} "
                f"and no {SETTINGS}); choose another --out, or delete it if it was a run."
            )


def _clear(directory: Path) -> bool:
    """Remove a run's own files, and only those; False where there is no run."""
    description = read_description(directory)
    if description is None:
        return False
    discard(directory)
    tables = [f"{name}.parquet" for name in description.get("tables", [])]
    for name in (_CLAIMS, *tables, *_FIGURE_FILES, SETTINGS):
        (directory / name).unlink(missing_ok=True)
    return True


def _is_finished(directory: Path) -> bool:
    """All claims and all tables are there (what can be drawn again from them may be missing)."""
    description = read_description(directory) or {}
    tables = [directory / f"{name}.parquet" for name in description.get("tables", [])]
    return (directory / _CLAIMS).exists() and all(table.exists() for table in tables)


@contextlib.contextmanager
def _hold(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the system lets go when the process dies."""
    lock = FileLock(directory / _LOCK)
    holder = "another joma process"
    try:
        if directory.exists() and not directory.is_dir():
            raise RunDirectoryError(f"{directory} is a file; --out needs a directory.")
        directory.mkdir(parents=True, exist_ok=True)
        refuse_irregular(directory / _LOCK)
        lock.acquire(timeout=0)
        write_text(directory / _HOLDER, f"process {os.getpid()} on {platform.node()}")
    except Timeout:
        with contextlib.suppress(InputError):
            holder = read_bytes(directory / _HOLDER).decode(errors="replace").strip()
        raise RunDirectoryError(
            f"{holder} is at work in {directory}; wait for it, or choose another --out."
        ) from None
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        tidy_up(directory)
        shutil.rmtree(directory / _GROWN, ignore_errors=True)  # of a process that was killed, or a full disk
        yield
    finally:
        with contextlib.suppress(OSError):
            (directory / _HOLDER).unlink(missing_ok=True)
            if not (directory / SETTINGS).exists():
                (directory / _LOCK).unlink(missing_ok=True)  # not a run's directory after all
        lock.release()


def _write_figures(job: Job, tables: Mapping[str, pd.DataFrame], directory: Path) -> None:
    # The PDF writer's font tools remark on the dates inside matplotlib's own fonts.
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    # What drew a picture is tens of MB, in circles that nobody would collect before the next.
    with collect_afterwards() as collect:
        for theme, names in _FIGURES.items():
            with style(theme):
                figure = job.draw(tables)
                for name in names:
                    with whole_file(directory / name) as temporary:
                        figure.savefig(temporary)
                    figure.set_layout_engine("none")  # it has its places now
                    collect()
                figure.clear()
                del figure
                collect()

"""What ``settings.yaml`` says of a run: which job, with which settings, made by what; written and read."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from joma.core.errors import InputError, RunDirectoryError, abbreviate
from joma.core.files import write_text
from joma.core.plain_yaml import read_yaml
from joma.core.settings import Value
from joma.core.threads import usable_cores
from joma.core.version import __version__
from joma.runs.job import Job
from joma.runs.parts import holds_work, notes_of

SETTINGS = "settings.yaml"
FORMAT = 3
"""Version of a run directory. 1 named no format, and had neither checksums nor the device that was used; the
claims of 2 had no criterion."""

_PLATFORM = platform.platform()
"""Asked once: it starts a program, which each process of a sweep would do again."""
Description = dict[str, Any]
"""YAML's own types; ``read_description`` has checked those that are relied on."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_KINDS = {
    **dict.fromkeys(("experiment", "title", "reproduces", "subject", "preset", "command", "figure"), str),
    **dict.fromkeys(("settings", "versions", "files"), dict),
    **dict.fromkeys(("tables", "answer"), list),
    "format": int,
}


def describe(job: Job, preset: str, values: Mapping[str, Value]) -> Description:
    """What is known before the job runs; ``values``: what its preset's name stands for."""
    settings = {name: list(v) if isinstance(v, tuple) else v for name, v in job.flat().items()}
    return {
        "experiment": job.name(),
        "title": job.heading(),
        "reproduces": job.reproduces,
        "subject": job.subject,
        "preset": preset,
        "command": job.command(values),
        "settings": settings,
        "threads": job.threads or usable_cores(),
        **environment(),
    }


def environment() -> Description:
    """Format and versions."""
    versions = {
        "joma": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": _PLATFORM,
    }
    return {"format": FORMAT, "versions": versions}


def computed_with(directory: Path, tables: Mapping[str, pd.DataFrame]) -> Description:
    """The devices and dtypes that were used: as the parts noted, else as the table ``model`` says."""
    used = notes_of(directory)
    if "model" in tables and {"device", "dtype"} <= set(tables["model"]):
        used += list(tables["model"][["device", "dtype"]].astype(str).itertuples(index=False, name=None))
    devices, dtypes = zip(*(used or [("cpu", "float64")]), strict=True)
    return {"device": ", ".join(sorted(set(devices))), "dtype": ", ".join(sorted(set(dtypes)))}


def write_description(directory: Path, content: Description) -> None:
    """Write ``settings.yaml``."""
    write_text(directory / SETTINGS, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))


def read_description(directory: Path) -> Description | None:
    """What ``settings.yaml`` holds, or None where there is none.

    Raises:
        RunDirectoryError: it does not describe a run, names what is no name, or has a later format.
    """
    path = directory / SETTINGS
    if not path.exists():
        return None
    try:
        content: Any = read_yaml(path)
    except InputError as error:
        raise RunDirectoryError(f"the run in {directory} cannot be read: {error}") from error
    if (
        not isinstance(content, dict)
        or "experiment" not in content
        or not all(isinstance(content.get(key, kind()), kind) for key, kind in _KINDS.items())
    ):
        raise RunDirectoryError(
            f"{path} does not describe a run; choose another --out, or delete {directory} if it was one."
        )
    if content.get("format", 1) > FORMAT:
        raise RunDirectoryError(
            f"{path} was written by a later joma (format {content['format']}; this one reads up to {FORMAT})."
        )
    for name in [*content.get("tables", []), content["experiment"]]:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RunDirectoryError(
                f"{path} names {abbreviate(name)}, which is not a name of letters, digits, _ and -; joma did "
                f"not "
                "write it."
            )
    return content


def check_identity(
    directory: Path, description: Description, defaults: Mapping[str, Value], free: Collection[str] = ()
) -> None:
    """Refuse a directory that holds work of another job, or of this one with other settings.

    A setting that the run's version did not have counts as its default; ``free`` ones may differ.

    Raises:
        RunDirectoryError: which of these.
    """
    there = read_description(directory)
    if there is None:
        return
    if there["experiment"] != description["experiment"]:
        raise RunDirectoryError(
            f"{directory} is a run of {there['experiment']!r}, not of {description['experiment']!r}; "
            "choose another --out, or --overwrite to start over."
        )
    old, new = there.get("settings") or {}, description["settings"]
    for key in sorted({*map(str, old), *new} - set(free)):
        default = defaults.get(key)
        before = old.get(key, list(default) if isinstance(default, tuple) else default)
        if before != new.get(key):
            raise RunDirectoryError(
                f"{directory} was run with {key} = {abbreviate(before)}, now it is "
                f"{abbreviate(new.get(key))}; "
                "choose another --out, or --overwrite to start over."
            )


def check_versions(directory: Path, description: Description) -> None:
    """Refuse to go on with an unfinished run that another version began.

    Raises:
        RunDirectoryError: which versions.
    """
    there = read_description(directory)
    for key in ("joma", "torch") if there and holds_work(directory) else ():
        before, now = (there or {}).get("versions", {}).get(key), description["versions"][key]
        if before != now:
            raise RunDirectoryError(
                f"the unfinished run in {directory} was begun with {key} {before}, "
                f"and this is {key} {now}; use --overwrite to start over."
            )

"""Which packages are missing or older than joma needs: one sentence, asked for when an import has failed."""

from __future__ import annotations

import re

_STATED = re.compile(r"(?P<name>[\w.-]+)\s*>=\s*(?P<least>[\d.]+)$")
_OPTIONAL = ("numba",)
"""What joma works without."""


def outdated() -> str:
    """Return a sentence that names a package which is missing or too old, or an empty one.

    The least versions are those of joma's own metadata; extras do not count.
    """
    from importlib import metadata  # half of what the command's help takes to import

    try:
        stated = metadata.requires("joma") or []
    except metadata.PackageNotFoundError:
        return ""
    for line in stated:
        match = _STATED.match(line)
        if match is None or match["name"].lower() in _OPTIONAL:
            continue
        name, least = match["name"], match["least"]
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"joma needs the package {name}, which is not installed: pip install '{name}>={least}'."
        if _numbers(found) < _numbers(least):
            install = f"pip install '{name}>={least}'"
            return f"joma needs {name} {least} or newer, and {found} is installed: {install}."
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """2.9.1+cpu -> (2, 9, 1); what follows the release counts for nothing, and so do zeros at its end."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

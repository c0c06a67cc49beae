"""The version of joma, the commit that it was built from, and what it needs that is missing or too old."""

from __future__ import annotations

import os  # and not pathlib, whose import takes a tenth of the time of ``joma --help``

__version__ = "0.1.0"
_HERE = os.path.dirname(os.path.abspath(__file__))
_BUILT = os.path.join(_HERE, "commit.txt")
_GIT = os.path.join(_HERE, "..", "..", "..", ".git")
_OPTIONAL = ("numba",)
"""What joma works without."""


def commit() -> str:
    """Return the commit's first twelve digits, of the build or of the checkout; empty if unknown."""
    try:
        if os.path.exists(_BUILT):
            return _read(_BUILT)
        git = _GIT
        if os.path.isfile(git):  # a work tree of another checkout
            git = _read(git).removeprefix("gitdir:").strip()
        head = _read(git, "HEAD")
        if not head.startswith("ref: "):
            return head[:12]
        name = head.removeprefix("ref: ")
        base = git
        if os.path.exists(os.path.join(git, "commondir")):
            base = os.path.join(git, _read(git, "commondir"))
        if os.path.exists(os.path.join(base, name)):
            return _read(base, name)[:12]
        packed = _read(base, "packed-refs").splitlines()
        return next((line[:12] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""


def _read(*parts: str) -> str:
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read().strip()


def find_outdated() -> str:
    """Return a sentence that names a package which is missing or too old, or an empty one.

    The least versions are those of joma's own metadata; extras do not count. It is asked when an import has
    failed.
    """
    import re  # neither is needed by the command's help, of which their import would be half
    from importlib import metadata

    try:
        stated = metadata.requires("joma") or []
    except metadata.PackageNotFoundError:
        return ""
    for line in stated:
        match = re.match(r"([\w.-]+)\s*>=\s*([\d.]+)$", line)
        if match is None or match[1].lower() in _OPTIONAL:
            continue
        name, least = match[1], match[2]
        install = f"pip install '{name}>={least}'"
        try:
            there = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"joma needs the package {name}, which is not installed: {install}."
        if _numbers(there) < _numbers(least):
            return f"joma needs {name} {least} or newer, and {there} is installed: {install}."
    return ""


def find_untried() -> str:
    """Return a sentence that names a system or a Python on which joma was not tried, or an empty one.

    What it was tried on stands among the classifiers of joma's own metadata.
    """
    import platform
    import sys
    from importlib import metadata

    try:
        stated = metadata.metadata("joma").get_all("Classifier") or []
    except metadata.PackageNotFoundError:
        return ""
    systems = [line.split(" :: ")[-1] for line in stated if line.startswith("Operating System :: ")]
    pythons = [line.split(" :: ")[-1] for line in stated if ":: Python :: 3." in line]
    system, python = platform.system() or sys.platform, "{}.{}".format(*sys.version_info)
    system = "macOS" if system == "Darwin" else system
    untried = [system] if systems and system not in systems else []
    untried += [f"Python {python}"] if pythons and python not in pythons else []
    if not untried:
        return ""
    tried = f"{' and '.join(systems)} with Python {', '.join(pythons)}"
    return f"joma was tried on {tried}, and not on {' with '.join(untried)}."


def _numbers(version: str) -> tuple[int, ...]:
    """2.9.1+cpu -> (2, 9, 1); what follows the release counts for nothing, and so do zeros at its end."""
    numbers = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:  # 0rc1
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

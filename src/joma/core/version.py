"""The version of joma, and the commit that it was built from."""

from __future__ import annotations

import os  # and not pathlib, whose import takes a tenth of the time of ``joma --help``

__version__ = "0.1.0"
_HERE = os.path.dirname(os.path.abspath(__file__))
_BUILT = os.path.join(_HERE, "commit.txt")
_GIT = os.path.join(_HERE, "..", "..", "..", ".git")


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

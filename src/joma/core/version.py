"""The version of joma, and the commit that it was built from."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"
_BUILT = Path(__file__).with_name("commit.txt")
_GIT = Path(__file__).parents[3] / ".git"


def commit() -> str:
    """Return the commit's first twelve digits, of the build or of the checkout; empty if unknown."""
    try:
        if _BUILT.exists():
            return _BUILT.read_text("utf-8").strip()
        git = _GIT
        if git.is_file():  # a work tree of another checkout
            git = Path(git.read_text("utf-8").removeprefix("gitdir:").strip())
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head[:12]
        name = head.removeprefix("ref: ")
        common = git / "commondir"
        base = git / common.read_text("utf-8").strip() if common.exists() else git
        if (base / name).exists():
            return (base / name).read_text("utf-8").strip()[:12]
        packed = (base / "packed-refs").read_text("utf-8").splitlines()
        return next((line[:12] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""

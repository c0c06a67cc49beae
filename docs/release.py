"""Refuse to publish while release.toml has an empty field; list what is missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def missing(path: Path) -> list[str]:
    """The fields that are empty."""
    return [name for name, value in tomllib.loads(path.read_text("utf-8")).items() if not value]


if __name__ == "__main__":
    empty = missing(Path(__file__).parents[1] / "release.toml")
    if empty:
        sys.exit(f"release.toml: {', '.join(empty)} must be filled before joma can be published.")

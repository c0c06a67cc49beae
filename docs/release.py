"""Refuse to publish while release.toml has an empty field, or what names the release leads elsewhere."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HOST = "https://github.com/"
"""What Colab opens; without it a notebook has no badge."""


def missing(path: Path) -> list[str]:
    """The fields that are empty."""
    return [name for name, value in tomllib.loads(path.read_text("utf-8")).items() if not value]


def badges_elsewhere(folder: Path, repository: str) -> list[str]:
    """The notebooks whose badge does not lead to this repository."""
    if not repository.startswith(HOST):
        return []
    place = f"colab.research.google.com/github/{repository.removeprefix(HOST).rstrip('/')}/blob/"
    return [path.name for path in sorted(folder.glob("*.ipynb")) if place not in path.read_text("utf-8")]


def citation_elsewhere(path: Path, identifier: str) -> str:
    """The line that CITATION.cff lacks; empty where it has it, or where there is no identifier yet."""
    line = f"doi: {identifier}"
    return line if identifier and line not in path.read_text("utf-8").splitlines() else ""


def main(root: Path) -> None:
    """Exit with what is left to do before publishing, if anything is."""
    fields = root / "release.toml"
    if empty := missing(fields):
        sys.exit(f"release.toml: {', '.join(empty)} must be filled before joma can be published.")
    told = tomllib.loads(fields.read_text("utf-8"))
    repository = told["repository"]
    if line := citation_elsewhere(root / "CITATION.cff", told["doi"]):
        sys.exit(f"CITATION.cff: the line {line!r} is missing.")
    if others := badges_elsewhere(root / "docs" / "notebooks", repository):
        sys.exit(
            f"docs/notebooks: {', '.join(others)} do not lead to {repository}; run: docs/notebooks.py --badges."
        )


if __name__ == "__main__":
    main(Path(__file__).parents[1])

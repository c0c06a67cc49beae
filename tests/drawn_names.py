"""Names that occur nowhere in the sources, drawn for the tests of the rules."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

import joma

SOURCES = "\n".join(
    path.read_text("utf-8").lower() for path in sorted(Path(joma.__file__).parent.rglob("*.py"))
)

words = st.text("bdfgjklmprstvz", min_size=5, max_size=8).filter(lambda word: word not in SOURCES)
"""A word of no language."""


def pairs() -> st.SearchStrategy[list[str]]:
    """Two different words."""
    return st.lists(words, min_size=2, max_size=2, unique=True)


def assert_unheard_of(*names: str) -> None:
    """None of the names occurs in the sources: what is right about them is right by a rule."""
    for name in names:
        assert name.lower() not in SOURCES, name

"""Write docs/results.md from the list of the papers' results in ``joma.theory.results``."""

from __future__ import annotations

from pathlib import Path

from joma.theory.results import RESULTS, Result

HEAD = """# The papers' results

Where each theorem, lemma, equation, figure and table is: its functions, the groups of `joma check` that
verify it, the experiments (`joma run NAME`) that show it. This page is written by `python docs/results.py`
from the list in `joma.theory`.

| result | about | functions | checks | experiments |
|---|---|---|---|---|
"""


def row(result: Result) -> str:
    """A line of the table."""
    functions, checks, experiments = (
        ", ".join(f"`{name}`" for name in names)
        for names in (result.functions, result.checks, result.experiments)
    )
    return f"| {result.source} | {result.says} | {functions or result.note} | {checks} | {experiments} |\n"


def page() -> str:
    """The whole page in Markdown."""
    return HEAD + "".join(map(row, RESULTS))


if __name__ == "__main__":
    (Path(__file__).parent / "results.md").write_text(page(), encoding="utf-8")

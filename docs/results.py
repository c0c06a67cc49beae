"""Write docs/results.md from the list of the papers' results in ``joma.theory.results``: a table of all, and of each
theorem, lemma and equation the statement as a formula, what it assumes, what is wrong in print, and a figure.

The formulas stand in ``docs/statements.toml``; what is printed otherwise is read from ``docs/errata.md``, as
``docs/errata.py`` has last computed it.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path

from joma.theory.results import RESULTS, Result

HERE = Path(__file__).parent
HEAD = """# The papers' results

Where each theorem, lemma, equation, figure and table is: its functions, the groups of `joma check` that
verify it, the experiments (`joma run NAME`) that show it. [Below the table](#statements) each theorem stands with its
formula, in the form that holds here. This page is written by `python docs/results.py` from the list in `joma.theory`.

| result | about | functions | checks | experiments |
|---|---|---|---|---|
"""
ROW = re.compile(r"^\| (?P<cells>.*) \|$", re.MULTILINE)


def row(result: Result) -> str:
    """A line of the table."""
    functions, checks, experiments = (
        ", ".join(f"`{name}`" for name in names)
        for names in (result.functions, result.checks, result.experiments)
    )
    return f"| {result.source} | {result.says} | {functions or result.note} | {checks} | {experiments} |\n"


@cache
def statements() -> dict[str, dict[str, object]]:
    """Source -> its formulas in LaTeX and what they assume."""
    return tomllib.loads((HERE / "statements.toml").read_text("utf-8"))


@cache
def corrections() -> dict[str, str]:
    """Statement as printed (as a cell of the errata) -> what is right."""
    page = (HERE / "errata.md").read_text("utf-8")
    corrected = page.partition("## Corrected")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\) \| ", match["cells"]) for match in ROW.finditer(corrected)]
    return {cells[1]: cells[2] for cells in rows if len(cells) == 5}


@cache
def wrong_in_print(group: str) -> list[tuple[str, str]]:
    """Of a group of checks: what is printed, and what is right, as cells of a table."""
    from errata import cell

    listed = json.loads((HERE / "stored" / "check.json").read_text("utf-8"))
    own = [claim for claim in listed if claim["id"].partition(".")[0] == group]
    told = [cell(claim["statement"]) for claim in own if claim["verdict"] == "corrected"]
    return [(text, corrections()[text]) for text in told if text in corrections()]


def section(result: Result) -> str:
    """A result with its formula, assumptions, misprints, functions, checks and a figure."""
    said = statements()[result.source]
    lines = [f"### {result.source}: {result.says}\n"]
    lines += [f"$$\n{formula}\n$$\n" for formula in said["formula"]]
    lines.append(f"**Assumes** {said['assumes']}.\n")
    wrong = [pair for group in result.checks for pair in wrong_in_print(group)]
    if wrong:
        lines.append("| printed | right |\n|---|---|\n" + "".join(f"| {a} | {b} |\n" for a, b in wrong))
    where = []
    if result.functions:
        where.append("Functions: " + ", ".join(f"`joma.{name}`" for name in result.functions) + ".")
    if result.checks:
        where.append(f"Checked by `joma check {' '.join(result.checks)}`.")
    lines.append(" ".join(where) + "\n" if where else "")
    drawn = [name for name in result.experiments if (HERE / "experiments" / f"{name}.webp").is_file()]
    if drawn:
        lines.append(
            f"[![Figure of the experiment {drawn[0]}](experiments/{drawn[0]}.webp)](experiments/{drawn[0]}.md)\n"
        )
    return "\n".join(line for line in lines if line)


def page() -> str:
    """The whole page in Markdown."""
    stated = [result for result in RESULTS if result.source in statements()]
    below = (
        "\n## Statements\n\nEach in the form that holds here; what is printed otherwise stands below it.\n\n"
    )
    return HEAD + "".join(map(row, RESULTS)) + below + "\n".join(map(section, stated))


if __name__ == "__main__":
    (HERE / "results.md").write_text(page(), encoding="utf-8")

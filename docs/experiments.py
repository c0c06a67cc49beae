"""Write docs/experiments/NAME.md, a page for each experiment, and their list, from their own words.

``python docs/experiments.py`` writes the pages; ``python docs/experiments.py RUN_DIRECTORY ...`` first draws
the figures of these runs again and keeps them, small, beside the pages, as ``python docs/stored.py`` does.
"""

from __future__ import annotations

import re
import sys
from inspect import cleandoc
from pathlib import Path

from stored import FIGURES as FOLDER
from stored import keep_figure

from joma.core.settings import Value
from joma.experiments import catalog
from joma.experiments.base import Experiment

HEAD = """# Experiments

Each is one command, `joma run NAME`, with the presets `quick` (about two minutes on two cores) and `paper`
(the paper's own scale). Costs are processor time, measured by `python docs/costs.py`; those with "about" are
estimates for two cores. What their claims came to stands in [What was found](../findings.md) and in
[Every claim and its null](../claims.md). These pages are written by `python docs/experiments.py`.

| experiment | reproduces | about | costs |
|---|---|---|---|
"""


def plain(text: str) -> str:
    """A docstring in Markdown: roles and double backticks become code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", cleandoc(text))
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def written(value: Value) -> str:
    """A setting's value as one types it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def page(name: str) -> str:
    """An experiment's page in Markdown."""
    kind: type[Experiment] = catalog.find(name)
    cost = ", ".join(f"{preset}: {time}" for preset, time in kind.costs().items())
    lines = [f"# {name}: {kind.title}\n", f"{kind.reproduces}. It costs ({cost}).\n"]
    lines += ["```sh", *(f"joma run {name} --preset {preset}" for preset in kind.presets), "```\n"]
    lines.append(plain(kind.__doc__ or "") + "\n")
    if (FOLDER / f"{name}.webp").is_file():
        lines.append(f"![{plain(kind().caption())}]({name}.webp)\n")
    lines += ["## Settings\n", "| option | default (`quick`) | `paper` | what it is |", "|---|---|---|---|"]
    paper = kind.preset_values("paper") if "paper" in kind.presets else {}
    for field in kind.fields().values():
        option = f"`--{field.name.replace('_', '-')}`"
        other = written(paper[field.name]) if field.name in paper else ""
        cells = (option, written(field.default), other, field.help)
        lines.append(
            "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"
        )
    return "\n".join(lines) + "\n"


def index() -> str:
    """The list of all experiments in Markdown."""
    rows = []
    for name in catalog.names():
        kind = catalog.find(name)
        cost = "; ".join(f"{preset}: {time}" for preset, time in kind.costs().items())
        rows.append(f"| [{name}]({name}.md) | {kind.reproduces} | {kind.title} | {cost} |\n")
    return HEAD + "".join(rows)


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    return {"index.md": index(), **{f"{name}.md": page(name) for name in catalog.names()}}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for word in sys.argv[1:]:
        keep_figure(Path(word))
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")

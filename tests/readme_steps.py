"""The steps of README.md as its reader types them: each fenced block, in order."""

from __future__ import annotations

import re
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """One line for a shell, or one block for Python."""

    kind: str
    """``sh``, ``python`` or ``pycon``."""
    typed: str


def steps(page: str) -> list[Step]:
    """The steps of a page; a shell's block is a step a line, without its remarks."""
    found: list[Step] = []
    for kind, body in BLOCK.findall(page):
        if kind != "sh":
            found.append(Step(kind, body))
            continue
        lines = (line.partition(" #")[0].strip() for line in body.splitlines())
        found += [Step("sh", line) for line in lines if line]
    return found

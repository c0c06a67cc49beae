"""Write docs/commands.md: every command with its ``--help``, as a terminal shows it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from joma.cli.commands import COMMANDS
from joma.cli.main import main

HEAD = """# The command line

Every command as its `--help` says; `joma run NAME --help` has the settings of an experiment, which its
[page](experiments/index.md) lists, too. This page is written by `python docs/commands.py`.
"""


def shown(words: list[str]) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(words)
    return out.getvalue().rstrip()


def page() -> str:
    """The whole page in Markdown."""
    parts = [HEAD, f"```text\n{shown(['--help'])}\n```\n"]
    for command in COMMANDS:
        words = [command, "fig9", "--help"] if command == "run" else [command, "--help"]
        parts.append(f"## joma {' '.join(words[:-1])}\n\n```text\n{shown(words)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "commands.md").write_text(page(), encoding="utf-8")

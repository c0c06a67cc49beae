"""The command line as a user calls it, without the seconds in which a process imports PyTorch."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from joma.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command has left."""

    returncode: int
    stdout: str
    stderr: str


def called(words: Sequence[str], stdin: str = "") -> Done:
    """What ``joma WORDS`` does, in this process; the words follow the command's name."""
    out, err, given = io.StringIO(), io.StringIO(), io.TextIOWrapper(io.BytesIO(stdin.encode()))
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", given):
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(status, out.getvalue(), err.getvalue())

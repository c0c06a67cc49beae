"""A text that comes through a pipe."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from joma.core.errors import InputError
from joma.core.files import GIVEN, write_text

PIPED = "-"
"""What ``--text`` says for standard input."""


def piped_text(directory: Path) -> Path:
    """Standard input as a file in the run's directory, so that the run and its command find it again.

    Its name is made from the content: another text is another setting.

    Raises:
        InputError: there is no pipe, or nothing that is text comes out of it.
        RunDirectoryError: the directory cannot be written.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise InputError("--text - reads standard input, and nothing is piped into it; name a file instead.")
    content = sys.stdin.buffer.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 (byte {error.start}); convert it first.") from error
    if not text.strip():
        raise InputError("standard input is empty; pipe a text with words in it.")
    path = directory / f"{GIVEN}{hashlib.sha256(content).hexdigest()[:12]}.txt"
    write_text(path, text)
    return path

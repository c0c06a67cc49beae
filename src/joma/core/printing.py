"""What a terminal is sent: text in which no name, whoever chose it, holds a control character."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

TYPE_CHECKING = False  # as checkers read it; importing typing takes longer than what a terminal is sent
if TYPE_CHECKING:
    from typing import IO, Any

_LAYOUT = "\n\t"
_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode."""


def harmless(text: str) -> str:
    """The text with every character escaped that a terminal would obey rather than show.

    These are control characters (ESC, BEL, CR, ...), formatting ones (U+202E turns the direction of what
    follows), line separators and lone surrogates. Line feeds and tabulators stay: they are the layout of the
    text.
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(one if _is_harmless(one) else _escape(one) for one in text)


def one_line_of(name: object) -> str:
    """The same of a name that stands in a line of its own: its line feeds and tabulators are escaped too."""
    return "".join(_escape(one) if one in _LAYOUT else one for one in harmless(str(name)))


def some_names(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _is_harmless(one: str) -> bool:
    return one.isprintable() or one in _LAYOUT or unicodedata.category(one) not in _OBEYED


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")


class Harmless:
    """A text stream through which ``harmless`` text alone goes; everything else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write it, escaped; what the stream's encoding lacks is escaped too."""
        text, encoding = harmless(text), getattr(self.stream, "encoding", None)
        if encoding and not text.isascii():
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        return self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write each."""
        for line in lines:
            self.write(line)


def without_escapes(stream: IO[str]) -> IO[str]:
    """The stream itself, for a bar, which moves the cursor: what it shows must be harmless already."""
    while isinstance(stream, Harmless):
        stream = stream.stream
    return stream


@contextmanager
def harmless_output(stdout: IO[str], stderr: IO[str]) -> Iterator[None]:
    """Standard output and errors with every control character escaped."""
    with redirect_stdout(Harmless(stdout)), redirect_stderr(Harmless(stderr)):
        yield

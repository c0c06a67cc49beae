"""The errors that joma raises on purpose.

Each message is one sentence or two: what is wrong (with the value), where, and what to do. The
command line prints it without a traceback and ends with ``exit_status``. This module is the ground
floor: everything may import it, and it imports nothing of joma.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # as checkers read it; the command's help does without importing typing
if TYPE_CHECKING:
    import pandas


_LONGEST_NAME = 100
_ALIKE = 0.6
"""Share of letters that two names have in common, in order, from which on one may be meant by the other."""


class JomaError(Exception):
    """Something that the caller can put right; the message says how."""

    exit_status = 2


class InputError(JomaError, ValueError):
    """An argument, a setting or a file that cannot be used as it is."""


class MissingPackageError(InputError, ImportError):
    """A package that is not installed, or too old; the message says what to type."""


class RunDirectoryError(JomaError):
    """A run directory that cannot be read, written or shared."""


class UnfinishedError(JomaError):
    """A run that was begun and could not be finished (divergence, a full disk)."""

    exit_status = 1


class DiskFullError(UnfinishedError):
    """No room is left where results are written."""


class DivergenceError(UnfinishedError, ArithmeticError):
    """A loss or a state that left the finite numbers; ``table`` holds what was measured before."""

    table: pandas.DataFrame | None = None


@contextmanager
def foreign(what: str) -> Iterator[None]:
    """Errors of another library's engine as an InputError about ``what``, its panics included.

    A panic of a Rust engine (tokenizers) is no Exception and would end joma with a traceback.
    """
    try:
        yield
    except (JomaError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what} ({first_line(error)}).") from error


@contextmanager
def contain(what: str) -> Iterator[None]:
    """Whatever goes wrong with one of many things (a member of a series) as a JomaError about that thing.

    The caller notes it and goes on with the next one. An interruption passes, and so does a JomaError.
    """
    try:
        with foreign(what):
            yield
    except MemoryError as error:
        raise UnfinishedError(f"{what} (out of memory).") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type's name where it has none."""
    text = str(error).strip()
    return text.splitlines()[0][:200].rstrip(" .") if text else type(error).__name__


def words_of(error: Exception) -> str:
    """An error as another message quotes it: joma's own words, or what Python calls it."""
    return str(error) if isinstance(error, JomaError) else f"{type(error).__name__}: {error}"


def abbreviate(value: object, most: int = 80) -> str:
    """A value as an error names it: its repr, cut in the middle where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python writes out
        return f"a {type(value).__name__} of thousands of digits"
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which of the ``known`` names was probably meant: ``"did you mean 'fig6'?"``.

    Falls back to the list of what is known when nothing is near.
    """
    names = sorted(known)
    close = closest(name, names)
    return f"did you mean {close!r}?" if close else "known are: " + ", ".join(names)


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or nothing where none is near.

    First the one whose words begin with these letters (``lr``: ``learning_rate``), then the one that holds
    the name as a word of its own, then the one that is spelt most alike. Dashes before a name do not count.
    """
    plain = {_letters(one): one for one in sorted(known, reverse=True)}
    own = _letters(name[:_LONGEST_NAME])
    if not own:
        return ""
    parts = {one: one.split("_") for one in plain}
    initials = [
        one for one in plain if len(parts[one]) > 1 and "".join(part[:1] for part in parts[one]) == own
    ]
    words = [one for one in plain if own in parts[one]]
    for found in (initials, words):
        if len(found) == 1:
            return plain[found[0]]
    import difflib  # only where a name is unknown

    close = difflib.get_close_matches(own, plain, n=1, cutoff=_ALIKE)
    return plain[close[0]] if close else ""


def _letters(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def one_line(text: str) -> str:
    """The text with every white space made one blank."""
    return " ".join(text.split())

"""The command line: words in, a command called, its errors told in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from joma.cli.commands import COMMANDS
from joma.core.errors import InputError, JomaError, abbreviate, nearest, one_line
from joma.core.printing import harmless_output
from joma.core.version import __version__, commit, find_outdated, find_untried

TYPE_CHECKING = False  # as checkers read it; importing typing takes as long as all of joma's own modules here
if TYPE_CHECKING:
    from typing import NoReturn

_USAGE = (
    "usage: joma COMMAND [options]\n\n"
    "The laboratory for the training dynamics of transformers.\n\ncommands:\n"
    + "\n".join(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items())
    + "\n\njoma COMMAND --help tells more. Exit status: 0 done, 1 a run that could not finish, "
    "2 something\nin the call or its files must be put right, 130 interrupted.\n"
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run joma with these arguments (default: the process's own); returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (as long as the process)
    if sys.stdout is None:
        return _unwritten("stdout is closed")
    with harmless_output(sys.stdout, sys.stderr):
        return _run(words, debug)


def _run(words: list[str], debug: bool) -> int:
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except JomaError as error:
        if debug:
            raise
        # A message that begins with its command says joma once.
        print(f"joma: {one_line(str(error)).removeprefix('joma ')}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        if debug:
            raise
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal has echoed ^C into a progress bar
        print(
            "joma: interrupted; finished parts are kept, and the same command continues from there.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # The reader of our output left (joma list | head): say nothing more, not even at exit.
        _silence_stdout()
        return 0
    except MemoryError:
        if debug:
            raise
        print("joma: out of memory; ask for less at once, or for a smaller model.", file=sys.stderr)
        return 1
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _silence_stdout()
            return _unwritten(error.strerror or "it is full")
        if debug:
            raise
        if isinstance(error, ImportError | AttributeError) and (said := find_outdated()):
            print(f"joma: {said}", file=sys.stderr)
            return 2
        untried = f" {find_untried()}".rstrip()
        print(
            f"joma: unexpected {type(error).__name__}: {one_line(str(error))} "
            f"(a defect of joma: please report it with what --debug shows){untried}",
            file=sys.stderr,
        )
        return 1


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritten(reason: str) -> int:
    print(f"joma: the output could not be written ({reason}).", file=sys.stderr)
    return 1


def entry() -> NoReturn:
    """The console script: ``main``, and an end that a second interruption cannot hold up."""
    status = main()
    if status == 130:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # what counts is on the disk, and the workers are gone
    sys.exit(status)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0
    if words[0] == "--version":
        built = commit()
        print(f"joma {__version__}{f' (commit {built})' if built else ''}")
        if untried := find_untried():
            print(untried, file=sys.stderr)
        return 0
    if words[0] not in COMMANDS:
        raise InputError(
            f"there is no command {abbreviate(words[0])}; {nearest(words[0], COMMANDS)} (see: joma --help)"
        )
    return COMMANDS[words[0]](words[0], words[1:])

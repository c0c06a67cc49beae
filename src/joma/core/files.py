"""Files that appear whole or not at all, and files of others that are read with bounds."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from joma.core.errors import DiskFullError, InputError, RunDirectoryError, UnfinishedError, abbreviate

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | None"
"""What JSON says, and plain YAML."""
GIVEN = "given-"
"""How the name of a file begins that a user gave for a run, and that is kept in its directory."""
LONGEST_CONFIG, LONGEST_INDEX = 4 << 20, 32 << 20
"""Bytes of a config.json and of an index of shards: a hundred times, and twice, what the largest take."""
_HEAD = 2_000
_SYNCHRONIZE, _ACCESS_DENIED, _STILL_RUNS = 0x00100000, 5, 0x102
"""Of the Windows API: a right, an error, and what a wait of no time answers of a process that runs."""
_UNFINISHED = re.compile(r"\.writing-(\d+)-(.+)")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    Killed or failed in between, ``path`` keeps what it held before, and the next one to write it removes
    what was left. The temporary name keeps the suffix, since many writers choose their format by it.

    Raises:
        UnfinishedError: the disk is full.
        RunDirectoryError: the place cannot be written, or is no regular file (a link, a device, a folder).
    """
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_irregular(path)
        remove_leftovers(path.parent, path.name)
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        with contextlib.suppress(OSError):  # reported above; nothing is left there
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all; what UTF-8 cannot hold (a lone surrogate) is escaped."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def refuse_irregular(path: Path) -> None:
    """Raises RunDirectoryError where ``path`` is there and is no regular file: it is never replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise RunDirectoryError(
                f"{path} is no regular file (a link, a device or a folder), which joma never replaces; "
                "choose another place."
            )


def refuse_foreign(path: Path, mark: bytes, overwrite: bool) -> None:
    """Raises RunDirectoryError where a file is there that joma did not write: its head lacks the ``mark``.

    With ``overwrite`` it may be replaced; what is no regular file never is.
    """
    try:
        refuse_irregular(path)
        if overwrite or not is_there(path):
            return
        with open(path, "rb") as file:
            own = mark in file.read(_HEAD)
    except OSError as error:
        raise storage_error(error, path) from error
    if not own:
        raise RunDirectoryError(
            f"{path} was not written by joma; choose another --out, or --overwrite to replace it."
        )


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove what processes that are gone left unfinished in a folder (of one file, if it is named)."""
    for path in folder.glob(".writing-*"):
        found = _UNFINISHED.fullmatch(path.name)
        if found and found[2] == (name or found[2]) and not _alive(int(found[1])):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if sys.platform == "win32":  # where signal 0 would interrupt it
        return _alive_on_windows(process)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _alive_on_windows(process: int) -> bool:
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 (unknown to a checker elsewhere)
    handle = kernel.OpenProcess(_SYNCHRONIZE, False, process)
    if not handle:
        return bool(kernel.GetLastError() == _ACCESS_DENIED)
    try:
        return bool(kernel.WaitForSingleObject(handle, 0) == _STILL_RUNS)
    finally:
        kernel.CloseHandle(handle)


def storage_error(error: OSError, path: Path) -> RunDirectoryError | UnfinishedError:
    """The error to raise for a failed write to ``path``, in a user's words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"the disk of {path.parent} is full: {path.name} was not written. What was finished before "
            "is kept; free some space and run the same command again."
        )
    return RunDirectoryError(
        f"{path} cannot be written ({error.strerror or error}); choose another place or mend its permissions."
    )


def user_path(text: str | Path) -> Path:
    """The path that a user wrote, ``~`` included; that of a user who is not there stays as it is."""
    return Path(os.path.expanduser(text))


def is_there(path: Path) -> bool:
    """Does something lie at the path? A name that no file can have is no error."""
    return os.path.exists(path)


def regular(path: Path) -> Path:
    """The path, if a regular file lies there: anything else could block a reader for ever.

    Raises:
        InputError: nothing, a folder, a FIFO or a device lies there.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{abbreviate(str(path))[1:-1]} cannot be read: {reason}.") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise InputError(f"{path} cannot be read: it is {kind}.")
    return path


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file of at most so many bytes.

    Raises:
        InputError: it is missing, too large, cannot be read, or is no file (a FIFO would never end).
    """
    try:
        size = regular(path).stat().st_size
        if most is not None and size > most:
            raise InputError(f"{path} has {size:,} bytes, more than {most:,}; give a smaller one.")
        with open(path, "rb") as file:  # no more than was promised, though it grows
            return file.read(size if most is None else most)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def parse_json(content: bytes | str, finite: bool = True) -> Json:
    """What JSON says; an endless nesting, or a number that is not finite where that is asked for, is none.

    Raises:
        ValueError: no JSON; the reason in a few words.
    """

    def number(word: str) -> float:
        value = float(word)
        if finite and not math.isfinite(value):
            raise ValueError(f"{word[:20]} is no finite number")
        return value

    try:
        found: Json = json.loads(content, parse_float=number, parse_constant=number)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return found


def digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(content: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()

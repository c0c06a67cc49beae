"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joma.errors import RunDirectoryError, UnfinishedError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    Killed or failed in between, ``path`` keeps what it held before. The temporary name keeps the
    suffix, since many writers choose their format by it.

    Raises:
        UnfinishedError: the disk is full.
        RunDirectoryError: the place cannot be written.
    """
    temporary = path.with_name(f".writing-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
    """Write UTF-8 text, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def storage_error(error: OSError, path: Path) -> RunDirectoryError | UnfinishedError:
    """The error to raise for a failed write to ``path``, in a user's words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnfinishedError(
            f"the disk of {path.parent} is full: {path.name} was not written. What was finished before "
            "is kept; free some space and run the same command again."
        )
    return RunDirectoryError(
        f"{path} cannot be written ({error.strerror or error}); choose another place or mend its permissions."
    )

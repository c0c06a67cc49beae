"""Files as a hub lists them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from joma.checkpoints.series.members import LARGEST
from joma.core.errors import InputError, abbreviate

_HASH, _SHA256 = re.compile("[0-9a-f]{40}|[0-9a-f]{64}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ListedFile:
    """A file as the hub lists it."""

    size: int
    small_hash: str
    """Git's; of a large file it is that of a note."""
    sha256: str
    """Of a large file; empty for a small one."""
    date: float
    """Of its last change, seconds since 1970; NaN where none is told."""

    @property
    def content_hash(self) -> str:
        """SHA-256 of a large file, git's hash of a small one."""
        return self.sha256 or self.small_hash


@dataclass(frozen=True)
class RemoteFolder:
    """A member's place in the repository, and its files by their plain names."""

    revision: str
    commit: str
    """What the revision was when it was listed: it may become another, and no file may be half of each."""
    folder: str
    files: dict[str, ListedFile]

    def hash_of(self, file: str) -> str:
        """SHA-256 of a large file, git's hash of a small one."""
        return self.files[file].content_hash


def file_of(entry: Mapping[str, Any]) -> ListedFile:
    """A file of a listing.

    Raises:
        InputError: a size or a hash that is none.
    """
    size, large, commit = entry["size"], entry.get("lfs"), entry.get("lastCommit")
    if type(size) is not int or not 0 <= size <= LARGEST:
        raise InputError(
            f"the hub says that {abbreviate(entry['path'])} has {abbreviate(size)} bytes, which no file has"
        )
    small, sha256 = str(entry["oid"]), "" if large is None else str(large["oid"])
    if not _HASH.fullmatch(small) or (large is not None and not _SHA256.fullmatch(sha256)):
        raise InputError(f"the hub tells no hash of {abbreviate(entry['path'])}")
    date = math.nan
    with contextlib.suppress(TypeError, KeyError, ValueError, OverflowError):  # none, or none of a calendar
        date = datetime.fromisoformat(commit["date"]).timestamp() if commit else math.nan
    return ListedFile(size, small, sha256, date)

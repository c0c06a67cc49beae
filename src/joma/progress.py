"""What a long computation tells its user, and what it keeps in case it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")


class Progress:
    """Handed to every experiment's ``run``: progress bars, finished parts, a folder for checkpoints.

    ``Progress()`` alone shows bars on a terminal and keeps nothing; a run directory hands out one
    whose parts survive a kill (see :mod:`joma.runs`).
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet or not sys.stderr.isatty()

    def track(
        self, items: Iterable[T], label: str, *, total: int | None = None, initial: int = 0
    ) -> Iterator[T]:
        """Iterate over ``items`` with a bar on stderr that appears after two seconds."""
        from tqdm import tqdm

        yield from tqdm(
            items,
            desc=label,
            total=total,
            initial=initial,
            disable=self.quiet,
            delay=2.0,
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
        )

    def part(self, name: str, compute: Callable[[], pandas.DataFrame]) -> pandas.DataFrame:
        """The table ``compute()`` returns, computed once: a run that is resumed finds it again.

        ``name`` is unique within the run and fit for a file name. Split a run of minutes into parts
        of seconds (a seed, a cell), so that a killed run loses little.
        """
        return compute()

    def checkpoint_folder(self, name: str) -> Path | None:
        """A folder for the checkpoints of an unfinished part, or None where nothing is kept."""
        return None


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

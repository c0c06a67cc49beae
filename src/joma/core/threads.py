"""How many threads a piece of work may take: chosen by the work, never by the load.

Small matrices on two threads cost more processor time than on one and gain nothing, and beside another
program each thread waits, spinning, for a core that it does not get.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

from joma.core.errors import UnfinishedError


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Let BLAS, OpenMP and torch take at most so many threads while the context lasts.

    Libraries that are loaded later are not limited: enter the context after the imports of the work.

    Raises:
        UnfinishedError: one of them takes more all the same.
    """
    # Not imported for this: whoever computes with torch has imported it.
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else threads
    controller = ThreadpoolController()
    with controller.limit(limits=threads):
        if torch:
            torch.set_num_threads(threads)
        try:
            taken = {library.filepath: library.num_threads or 1 for library in controller.lib_controllers}
            taken |= {"torch": torch.get_num_threads()} if torch else {}
            for name, number in taken.items():
                if number > threads:
                    raise UnfinishedError(
                        f"{name} takes {number} threads, and not the {threads} it was given."
                    )
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


FEWEST_ENTRIES = 2**24
"""Products and factorisations of smaller matrices take one thread: on busy cores the others are waited for,
spinning, at ten times the work's own cost, and on idle ones a matrix in the cache gains little."""


@contextmanager
def by_work(entries: int) -> Iterator[None]:
    """One thread for work on a matrix of fewer than ``FEWEST_ENTRIES``; else as many as there are."""
    if entries >= FEWEST_ENTRIES:
        yield
        return
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        with _blas().limit(limits=1, user_api="blas"):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)


@cache
def _blas() -> ThreadpoolController:
    """NumPy's BLAS, whose threads torch's settings do not reach."""
    return ThreadpoolController()


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

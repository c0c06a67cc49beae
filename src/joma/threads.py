"""How many threads a piece of work may take: chosen by the work, never by the load.

Small matrices on two threads cost more processor time than on one and gain nothing, and beside another
program each thread waits, spinning, for a core that it does not get.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Let BLAS, OpenMP and torch take at most so many threads while the context lasts.

    Libraries that are loaded later are not limited: enter the context after the imports of the work.
    """
    # Not imported for this: whoever computes with torch has imported it.
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else threads
    with threadpool_limits(limits=threads):
        if torch:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


def usable_cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

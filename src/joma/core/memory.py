"""Memory of a long run, given back and kept apart."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from joma.core.errors import UnfinishedError

_MMAP_THRESHOLD = -3
_LARGE = 4 << 20
"""Bytes."""


def hand_back() -> None:
    """Give the system what is free, where the C library would keep it.

    glibc keeps it in pieces between small things that live on, into which the next large tensors do not fit:
    the process would grow with every checkpoint.
    """
    if arrow := sys.modules.get("pyarrow"):  # not imported for this
        arrow.default_memory_pool().release_unused()
    _glibc("malloc_trim", 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or PyTorch says that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # what has not been imported has raised nothing
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Running out of memory as an UnfinishedError that says ``what``: the size, and what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UnfinishedError(f"out of memory {what}") from error


@contextmanager
def collect_afterwards() -> Iterator[Callable[[], None]]:
    """A function that gives back what the block has made and left, circles included.

    What was there before is looked through once: with PyTorch imported that is a million objects, a tenth of
    a second each time.
    """

    def collect() -> None:
        gc.collect()
        hand_back()

    collect()
    ours = gc.get_freeze_count() == 0
    if ours:  # what a user has frozen is not ours to thaw, nor to add to
        gc.freeze()
    try:
        yield collect
    finally:
        if ours:
            gc.unfreeze()


def keep_large_apart() -> None:
    """Have every large tensor in a place of its own for the rest of this process, which is the command's.

    glibc moves the size from which it does that up to 32 MB as it goes; what lies in the heap instead leaves
    holes, and the most that is held at once grows by some ten MB along a series.
    """
    _glibc("mallopt", _MMAP_THRESHOLD, _LARGE)


def _glibc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)

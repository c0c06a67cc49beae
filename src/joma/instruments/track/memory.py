"""Memory of a long run."""

from __future__ import annotations

import ctypes
import sys


def hand_back() -> None:
    """Give the system what is free, where the C library would keep it.

    glibc keeps it in pieces between small things that live on, into which the next large tensors do not fit:
    the process would grow with every checkpoint.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

"""Peak memory of a part of a process (Linux)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def peak_of(call: Callable[[], object]) -> tuple[float, float]:
    """The process's largest memory during a call, and how much that is above what it held before, in MB."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _highest()
    call()
    peak = _highest()
    return peak / 1024, (peak - before) / 1024


def _highest() -> int:
    """The process's peak memory, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

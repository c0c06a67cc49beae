"""What a cluster's worker does with a call: looks whether it is the same joma, and computes it alone."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from joma.core.errors import InputError
from joma.runs.description import environment

T = TypeVar("T")

_ALONE = threading.Lock()
"""Of a worker with several threads: two trainings at once would share torch's random numbers."""


def versions() -> dict[str, str]:
    """What must be the same everywhere for the same numbers: joma and torch."""
    known = environment()["versions"]
    return {name: known[name] for name in ("joma", "torch")}


def compute(call: Callable[[], T], asked_by: Mapping[str, str]) -> T:
    """Compute the call in this process, one at a time.

    Raises:
        InputError: this worker has other versions than ``asked_by``; the message names it and them.
    """
    here = versions()
    for name, wanted in asked_by.items():
        if here[name] != wanted:
            raise InputError(
                f"the worker on {platform.node()} has {name} {here[name]}, and here it is {wanted}; "
                f"install the same version on every machine."
            )
    with _ALONE:
        return call()

"""What measuring a series may take: bytes or a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from joma.core.errors import InputError, abbreviate

_UNITS: dict[str, tuple[str, float]] = {
    **{name: ("bytes", 1000.0**k) for k, name in enumerate(("b", "kb", "mb", "gb", "tb", "pb"))},
    **{name: ("bytes", 1024.0**k) for k, name in enumerate(("kib", "mib", "gib", "tib"), start=1)},
    "s": ("seconds", 1.0),
    "min": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
    "d": ("seconds", 86400.0),
}
_AMOUNT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{1,3})\s*")


@dataclass(frozen=True)
class Budget:
    """What measuring a series may take."""

    text: str
    """As it was given: ``200GB``, ``6h``."""
    kind: str
    """``bytes`` or ``seconds``."""
    amount: float


def read_budget(text: str) -> Budget:
    """The budget that a user's words say: a number with a unit of bytes or of time.

    Raises:
        InputError: they say none.

    Examples:
        >>> from joma.checkpoints.series.amounts import read_budget
        >>> read_budget("1.5GB").amount, read_budget("6h").kind
        (1500000000.0, 'seconds')
    """
    told = _AMOUNT.fullmatch(text)
    kind, factor = _UNITS.get(told[2].lower(), ("", 0.0)) if told else ("", 0.0)
    if told is None or not kind or float(told[1]) <= 0:
        raise InputError(
            f"budget = {abbreviate(text)}: give bytes or a time, such as 200GB, 500MB, 6h or 30min."
        )
    return Budget(text.strip(), kind, float(told[1]) * factor)


def in_words_of(kind: str) -> Callable[[float], str]:
    """How amounts of a kind are told: ``1,234 bytes``, ``12 s``."""
    return (lambda amount: f"{amount:,.0f} bytes") if kind == "bytes" else (lambda amount: f"{amount:,.1f} s")

"""What was changed from outside: learning rate, weight decay, the size of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_NAMES = {"lr": "learning rate", "weight_decay": "weight decay"}
_RATIO, _TIMES = 1.25, 3.0
"""A value was changed where it is this many times as large, or as small, as before, and moved this many
times as far as at the step before: a schedule's warm-up and decay move alike from step to step."""
_BATCH, _STEADY = 1.5, 3
"""Likewise of the rows of a batch, after so many looks at which they were the same."""


@dataclass
class Outside:
    """Remembers what the optimizer's groups and the batch were like, and names what jumped."""

    settings: dict[str, list[float]] = field(default_factory=dict)
    """Of each group and setting the last two values."""
    batches: list[int] = field(default_factory=list)
    """Rows of the last looks."""

    def read(self, groups: Sequence[Mapping[str, Any]]) -> list[str]:
        """What jumped among the settings of an optimizer's groups: one phrase for each setting."""
        told: dict[str, str] = {}
        for number, group in enumerate(groups):
            for name, words in _NAMES.items():
                value = group.get(name)
                if isinstance(value, Tensor):
                    if value.is_cuda:  # reading it would wait for the device
                        continue
                    value = float(value)
                if not isinstance(value, float | int):
                    continue
                key = f"{number} {name}"
                known = self.settings.get(key, [])
                if len(known) == 2 and _is_jump(known[0], known[1], float(value)):
                    where = f" of group {number}" if len(groups) > 1 and name not in told else ""
                    told.setdefault(name, f"the {words}{where} went from {known[1]:g} to {value:g}")
                self.settings[key] = [*known[-1:], float(value)]
        return list(told.values())

    def look(self, rows: int) -> list[str]:
        """What jumped in the number of query rows that a look saw."""
        known = self.batches[-_STEADY:]
        self.batches = [*known, rows][-_STEADY:]
        steady = len(known) == _STEADY and len(set(known)) == 1
        if not steady or not rows or 1 / _BATCH < rows / known[0] < _BATCH:
            return []
        self.batches = [rows]
        return [f"the batch went from {known[0]:,} to {rows:,} rows"]


def _is_jump(before: float, last: float, now: float) -> bool:
    if last <= 0 or now <= 0 or 1 / _RATIO < now / last < _RATIO:
        return False
    return abs(now - last) > _TIMES * abs(last - before)

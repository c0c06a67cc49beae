"""Thresholds from the user's own healthy runs: how far did none, or few, of them go?

The largest evidence and the largest growth of each healthy run are scores of one exchangeable kind: a further
run like them exceeds the largest of n with probability at most 1 / (n + 1), whatever their distribution
(conformal prediction, Vovk et al. 2005). The thresholds do not travel to another network, cadence or length.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joma.core.errors import InputError
from joma.core.files import user_path, write_text

VERSION = 1


@dataclass(frozen=True)
class Reference:
    """What healthy runs of one network reached."""

    model: str
    every: int
    statistics: list[str]
    keys: list[list[Any]]
    """(metric, module, call, head) of each series that was watched."""
    steps: int
    """Of the shortest run: the thresholds hold for so many."""
    change: list[float]
    """The largest logarithm of the evidence of each run."""
    growth: list[float]
    """The largest score of the growth of W_Q^T W_K of each run."""

    def levels(self, alpha: float) -> tuple[float, float, float]:
        """Levels of evidence and growth that a run like these exceeds with the third number's probability.

        Each rule has half of it.
        """
        count = len(self.change)
        share = max(alpha / 2, 1 / (count + 1))
        rank = min(math.ceil((count + 1) * (1 - share) - 1e-9), count)
        change, growth = (sorted(values)[rank - 1] for values in (self.change, self.growth))
        return change, growth, min(1.0, 2 * share)

    def check(self, model: str, every: int) -> None:
        """Raises InputError where it is of another network, or of another cadence."""
        for words, theirs, own in (("model", self.model, model), ("cadence", self.every, every)):
            if theirs != own:
                raise InputError(
                    f"reference is of another network: its {words} is {theirs!r}, and here it is {own!r}; "
                    "give healthy runs of this one."
                )

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_text(user_path(path), json.dumps({"version": VERSION, **asdict(self)}, indent=1))

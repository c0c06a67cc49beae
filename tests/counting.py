"""An experiment whose cells do next to nothing, slowly if asked to: to test the machinery of sweeps."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import pandas as pd

from joma.core.errors import DiskFullError, DivergenceError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joma.core.claim import Claim
    from joma.core.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Counting(Experiment):
    """Counts."""

    title = "counting"
    reproduces = "nothing"
    cost: ClassVar[Mapping[str, str]] = {"quick": "0 s", "paper": "0 s"}
    presets = {"quick": {}, "paper": {"sizes": (1, 2, 3)}}

    sizes: tuple[int, ...] = setting((1, 2), "sizes", at_least=0)
    rate: float = setting(0.5, "a number", above=0)
    word: str = setting("a", "a word")
    limit: int | None = setting(None, "a bound, or none", at_least=1)
    seeds: int = setting(2, "how many seeds", at_least=1)
    seconds: float = setting(0.0, "time that a cell takes", at_least=0)
    marks: str = setting("", "folder in which a cell notes that it has begun")
    diverges_at: int = setting(-1, "size that diverges")
    breaks_at: int = setting(-1, "size that has a defect")
    dies_at: int = setting(-1, "size that kills its process")
    fills_at: int = setting(-1, "size at which the disk is full")

    def cells(self) -> list[Self]:
        return [
            dataclasses.replace(self, sizes=(size,), seed=seed, seeds=1)
            for size in self.sizes
            for seed in range(self.seed, self.seed + self.seeds)
        ]

    def run(self, progress: Progress) -> dict[str, pd.DataFrame]:
        (size,) = self.sizes
        if self.marks:
            Path(self.marks, f"{size}-{self.seed}-{self.rate:g}-{time.monotonic_ns()}").touch()
        time.sleep(self.seconds)
        if size == self.diverges_at:
            raise DivergenceError(f"size {size} diverged; lower the rate.")
        if size == self.fills_at:
            raise DiskFullError("the disk of here is full.")
        if size == self.breaks_at:
            raise ZeroDivisionError("a defect")
        if size == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        values = [
            {"step": step, "metric": "count", "value": step * size + self.seed / 7} for step in range(3)
        ]
        return {"counts": pd.DataFrame(values)}

    def draw(self, tables: Mapping[str, pd.DataFrame]) -> Figure:
        raise NotImplementedError

    def claims(self, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
        return []

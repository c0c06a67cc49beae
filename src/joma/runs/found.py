"""What a job found, as Python holds it: its settings, its tables, and what they say and show."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from joma.core.style import style
from joma.core.tables import Tables
from joma.runs.job import Job


@dataclass(frozen=True, repr=False)
class Found(Tables):
    """A job with its tables; a subclass says which of them is what."""

    settings: Job
    tables: dict[str, pd.DataFrame]

    def plot(self) -> Figure:
        """The figure; change or save it as any of matplotlib's."""
        with style("light"):
            return self.settings.draw(self.tables)

    def answer(self) -> list[str]:
        """What was found, in one to three sentences."""
        return self.settings.answer(self.tables)

    def __str__(self) -> str:
        return " ".join(self.answer())

"""A small experiment to test the frame with: it counts, and it can be made to fail."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joma.core.claim import Claim, Statement, equal
from joma.core.errors import DivergenceError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.core.progress import Progress

COMPUTED: list[str] = []


@dataclass(frozen=True, kw_only=True)
class Toy(Experiment):
    """Counts to three."""

    title = "counting"
    reproduces = "nothing"
    cost = {"quick": "0 s", "paper": "0 s"}
    presets = {"quick": {}, "paper": {"parts": 3, "note": "long"}}

    parts: int = setting(2, "how many parts", at_least=1, at_most=9)
    rate: float = setting(0.5, "a number", above=0)
    sizes: tuple[int, ...] = setting((1, 2), "some sizes", at_least=1)
    limit: int | None = setting(None, "a bound, or none", at_least=2)
    note: str = setting("short", "a word", choices=("short", "long"))
    flag: bool = setting(False, "a switch")
    fail_at: int = setting(-1, "part that diverges")

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        import pandas as pd

        parts = {}
        for number in range(self.parts):
            name = f"part-{number}"
            parts[name] = progress.part(name, functools.partial(_compute, self, number))
        return {"counts": pd.concat(parts.values(), ignore_index=True)}

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        from joma.core.figures import panels

        figure, axes = panels()
        axes[0, 0].plot(tables["counts"]["value"])
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        count = len(tables["counts"])
        return [
            Statement("toy.count", "toy", "all <b>parts</b> count").judge(
                equal(self.parts, count, of="number of parts")
            )
        ]


def _compute(toy: Toy, number: int) -> pandas.DataFrame:
    import pandas as pd

    COMPUTED.append(f"part-{number}")
    table = pd.DataFrame([{"step": number, "value": number * 0.1, "token": "<script>alert(1)</script>"}])
    if number == toy.fail_at:
        error = DivergenceError(f"part {number} diverged; lower the rate.")
        error.table = table
        raise error
    return table


def square(number: int, progress: Progress) -> pandas.DataFrame:
    """A part that can be sent to another process; negative numbers fail."""
    import pandas as pd

    if number < 0:
        raise DivergenceError(f"{number} is negative.")
    return pd.DataFrame({"value": [number**2]})

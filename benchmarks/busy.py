"""What a busy core does: a module of its own, since a worker imports it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch

from joma.core.progress import Progress
from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Busy(Experiment):
    """Products of matrices, as many as are asked for."""

    title = "busy"
    reproduces = "nothing"
    presets = {"quick": {}}

    products: int = setting(0, "products of 256 x 256 matrices", at_least=0)

    def run(self, progress: Progress) -> dict[str, pd.DataFrame]:
        """Multiply, and return a table of 60 rows, as a training would."""
        multiply(self.products)
        rows = [{"step": step, "metric": "count", "value": float(step)} for step in range(60)]
        return {"counts": pd.DataFrame(rows)}


def multiply(products: int) -> float:
    """The busy loop, on one thread."""
    torch.set_num_threads(1)
    matrix = torch.full((256, 256), 1.0 / 256)
    for _ in range(products):
        matrix = matrix @ matrix
    return float(matrix[0, 0])

"""The tables of a sparsity run."""

from __future__ import annotations

import pandas as pd

from joma.core.progress import Progress
from joma.instruments.sparsity import SparsitySettings
from joma.instruments.sparsity.find import sparsity


def run(settings: SparsitySettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """What ``joma.sparsity`` finds."""
    settings.check_complete()
    return sparsity(
        **settings.reading.arguments(),
        layers=settings.layers,
        epsilon=settings.epsilon,
        seed=settings.seed,
        progress=progress,
    ).tables

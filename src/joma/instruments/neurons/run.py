"""The tables of a neuron run."""

from __future__ import annotations

import pandas as pd

from joma.core.progress import Progress
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.neurons.probe import probe_neurons


def run(settings: NeuronsSettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """What ``joma.neurons`` finds."""
    settings.check_complete()
    return probe_neurons(
        **settings.reading.arguments(),
        layers=settings.layers,
        neurons=settings.neurons,
        top=settings.top,
        smallest=settings.smallest,
        show=settings.show,
        null=settings.null,
        copies=settings.copies,
        seed=settings.seed,
        progress=progress,
    ).tables

"""The tables of a neuron run."""

from __future__ import annotations

import pandas as pd

from joma.instruments.neurons import NeuronsRun
from joma.probes.neurons.probe import probe_neurons
from joma.progress import Progress


def run(settings: NeuronsRun, progress: Progress) -> dict[str, pd.DataFrame]:
    """What :func:`joma.neurons` finds."""
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

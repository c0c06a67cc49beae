"""The sections of a probe, or the ranks of a checkpoint's matrices, as tables."""

from __future__ import annotations

import pandas as pd

from joma.checkpoints.adapter_ranks import adapter_ranks
from joma.checkpoints.ranks import weight_ranks
from joma.core.progress import Progress
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.probe import probe
from joma.instruments.probe.sections.attention import STATISTICS
from joma.instruments.probe.summary import layer_summary
from joma.instruments.reading.loading import checked_device, resolve


def run(settings: ProbeSettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """What ``joma.probe``, ``joma.probe_weights`` or ``joma.probe_adapter`` finds."""
    settings.check_complete()
    if settings.adapter:
        return adapter_ranks(resolve(settings.reading.model), seed=settings.seed, progress=progress)
    if settings.weights:
        tables = {"ranks": progress.part("ranks", lambda: _ranks(settings, progress))}
        return {**tables, "layers": layer_summary(tables)}
    return probe(
        **settings.reading.arguments(),
        sections=settings.sections,
        statistics=STATISTICS if settings.statistics is None else settings.statistics,
        layers=settings.layers,
        heads=settings.heads,
        rows=settings.rows,
        attention_matrices=settings.attention_matrices,
        null=settings.null,
        seed=settings.seed,
        progress=progress,
    ).tables


def _ranks(settings: ProbeSettings, progress: Progress) -> pd.DataFrame:
    device = settings.reading.device
    return weight_ranks(
        resolve(settings.reading.model),
        attention=settings.attention_matrices,
        certify=settings.certify,
        layers=settings.layers,
        device="cpu" if device == "auto" else checked_device(device),
        progress=progress,
    )

"""All instruments by name; importing them is light."""

from __future__ import annotations

from joma.instruments.audit import AuditSettings
from joma.instruments.base import Instrument
from joma.instruments.branch import BranchSettings
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.probe import ProbeSettings
from joma.instruments.sparsity import SparsitySettings
from joma.instruments.track import TrackSettings
from joma.runs.job import Job

INSTRUMENTS: dict[str, type[Instrument]] = {
    kind.name(): kind for kind in (ProbeSettings, TrackSettings, NeuronsSettings, SparsitySettings)
}

JOBS: dict[str, type[Job]] = {
    **INSTRUMENTS,
    **{kind.name(): kind for kind in (AuditSettings, BranchSettings)},
}
"""Those, and what writes a run directory without a command of its own."""

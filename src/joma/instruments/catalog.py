"""All instruments by name; importing them is light."""

from __future__ import annotations

from joma.instruments.base import Instrument
from joma.instruments.neurons import NeuronsRun
from joma.instruments.probe import ProbeRun
from joma.instruments.track import TrackRun

INSTRUMENTS: dict[str, type[Instrument]] = {kind.name(): kind for kind in (ProbeRun, TrackRun, NeuronsRun)}

"""All instruments by name; importing them is light."""

from __future__ import annotations

from joma.instruments.base import Instrument
from joma.instruments.neurons import NeuronsSettings
from joma.instruments.probe import ProbeSettings
from joma.instruments.sparsity import SparsitySettings
from joma.instruments.track import TrackSettings

INSTRUMENTS: dict[str, type[Instrument]] = {
    kind.name(): kind for kind in (ProbeSettings, TrackSettings, NeuronsSettings, SparsitySettings)
}

"""joma: the laboratory for the training dynamics of transformers.

Nothing heavy is imported before it is used: ``joma.attention_entropy`` and its like are found on
first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from joma.core.version import __version__

if TYPE_CHECKING:
    from joma.checkpoints.ranks import probe_weights
    from joma.core.errors import InputError, JomaError
    from joma.instruments.monitor.monitor import Monitor
    from joma.instruments.neurons.probe import Neurons
    from joma.instruments.neurons.probe import probe_neurons as neurons
    from joma.instruments.probe.probe import Probe, probe
    from joma.instruments.probe.run import write_probe
    from joma.instruments.reading.loading import load_model
    from joma.instruments.track.series import Track, track
    from joma.instruments.watch.watch import watch
    from joma.measures.attention.entropy import AttentionEntropy, attention_entropy
    from joma.measures.bounce import bounce
    from joma.measures.entropy import entropy_of_logits, entropy_of_probabilities
    from joma.measures.ranks.spectral_norm import spectral_norm
    from joma.measures.ranks.stable_rank import effective_rank, stable_rank, stable_rank_estimate
    from joma.report.results import Result, read
    from joma.sweeps.result import Sweep, sweep

_HOME = {
    "AttentionEntropy": "joma.measures.attention.entropy",
    "InputError": "joma.core.errors",
    "JomaError": "joma.core.errors",
    "Monitor": "joma.instruments.monitor.monitor",
    "Neurons": "joma.instruments.neurons.probe",
    "Probe": "joma.instruments.probe.probe",
    "Result": "joma.report.results",
    "Sweep": "joma.sweeps.result",
    "Track": "joma.instruments.track.series",
    "attention_entropy": "joma.measures.attention.entropy",
    "bounce": "joma.measures.bounce",
    "effective_rank": "joma.measures.ranks.stable_rank",
    "entropy_of_logits": "joma.measures.entropy",
    "entropy_of_probabilities": "joma.measures.entropy",
    "load_model": "joma.instruments.reading.loading",
    "neurons": "joma.instruments.neurons.probe:probe_neurons",
    "probe": "joma.instruments.probe.probe",
    "probe_weights": "joma.checkpoints.ranks",
    "read": "joma.report.results",
    "spectral_norm": "joma.measures.ranks.spectral_norm",
    "stable_rank": "joma.measures.ranks.stable_rank",
    "stable_rank_estimate": "joma.measures.ranks.stable_rank",
    "sweep": "joma.sweeps.result",
    "track": "joma.instruments.track.series",
    "watch": "joma.instruments.watch.watch",
    "write_probe": "joma.instruments.probe.run",
}
"""Public name -> its module, and its name there where that is another."""
_SUBMODULES = ("hf", "lightning", "theory")
"""Found as attributes, without an import of their own."""

__all__ = [
    "AttentionEntropy",
    "InputError",
    "JomaError",
    "Monitor",
    "Neurons",
    "Probe",
    "Result",
    "Sweep",
    "Track",
    "__version__",
    "attention_entropy",
    "bounce",
    "effective_rank",
    "entropy_of_logits",
    "entropy_of_probabilities",
    "load_model",
    "neurons",
    "probe",
    "probe_weights",
    "read",
    "spectral_norm",
    "stable_rank",
    "stable_rank_estimate",
    "sweep",
    "track",
    "watch",
    "write_probe",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"joma.{name}")
    if name in _HOME:
        module, _, other = _HOME[name].partition(":")
        return getattr(importlib.import_module(module), other or name)
    raise AttributeError(f"module 'joma' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})

"""Pattern superposition in a real model (``joma neurons``)."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.settings import setting
from joma.instruments.base import Instrument
from joma.instruments.neurons.measured import BATCH_TOKENS, COPIES, SHOWN, SMALLEST, TOP, WINDOW
from joma.instruments.reading.settings import ReadingSettings

_READING = ReadingSettings(length=WINDOW, batch_tokens=BATCH_TOKENS)


@dataclass(frozen=True, kw_only=True)
class NeuronsSettings(Instrument):
    """One neuron that answers to unrelated contexts, as in JoMA Fig. 10.

    The settings are those of ``joma.neurons``.

    Tables: those of ``joma.NeuronsResult``.
    """

    title = "neurons that answer to unrelated patterns"
    reproduces = "JoMA Fig. 10"

    reading: ReadingSettings = _READING
    layers: tuple[int, ...] | None = setting(None, "numbers of the layers: 0,5,11 (none: all)", at_least=0)
    neurons: tuple[int, ...] | None = setting(
        None, "numbers of the neurons in each layer: 7,300 (none: all)", at_least=0
    )
    top: int = setting(TOP, "contexts kept for each neuron", at_least=4)
    smallest: int = setting(SMALLEST, "contexts that make a pattern", at_least=2)
    show: int = setting(SHOWN, "neurons whose contexts are written out", at_least=1)
    null: str = setting(
        "untrained",
        "what stands beside the model: networks of its shape with weights drawn anew, or nothing",
        choices=("untrained", "none"),
    )
    copies: int = setting(COPIES, "untrained networks, each as long as the model itself", at_least=1)

    def heading(self) -> str:
        """Which model, and which text."""
        return f"the neurons of {self.reading.model} on {self.reading.source()}: {self.title}"

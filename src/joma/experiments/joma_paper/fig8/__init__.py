"""JoMA Fig. 8: decoders at several learning rates: which bounce, which collapse, which learn best."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from joma.experiments.shared.curve_settings import AS_IN_THE_PAPER, CurveSettings
from joma.experiments.shared.decoder_settings import redefine
from joma.runs.job import setting

PAPER_RATES = (1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 1e-3, 1e-2)
"""Those that the authors recorded."""


@dataclass(frozen=True, kw_only=True)
class Fig8(CurveSettings):
    """JoMA Fig. 8: attention entropy and held-out loss of decoders trained at several learning rates.

    The decoders are those of Fig. 6. Each is one cell of the grid of depths, learning rates and seeds; of
    each, the dip and the rebound of its attention entropy are found, its lowest held-out loss, and whether
    its attention collapses. The paper says that a large rate makes attention extremely sparse, and that the
    patterns which coincide with its theory (a fall, then a rise) give the lowest validation losses: over all
    cells, how do rebound and loss go together, and could the assignment of rates have made it so?

    The preset ``paper`` is the authors' script on WikiText-2. ``quick`` takes 500 words of the World English
    Bible, width 96 and three rates; ``hours`` 2,000 words of WikiText-2 (a folder of its validation and
    test text will do), width 128, two depths and five rates. With ``--recorded FILE`` nothing is trained: the
    authors' own curves are judged, all depths, rates and seeds of them. ``joma sweep fig8`` runs the same
    grid, each cell into a run directory of its own, on this machine or a cluster.
    """

    title = "Decoders at several learning rates: which one bounces, which collapses, which learns best"
    reproduces = "JoMA Fig. 8"
    cost = {"quick": "3 min", "hours": "2 h", "paper": "weeks"}
    presets = {
        "quick": {},
        "hours": {
            "corpus": "wikitext-2",
            "vocabulary_size": 2000,
            "layers": (1, 2),
            "learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
            "seed": 1,
            "width": 128,
            "hidden": 128,
            "windows": 100,
        },
        "paper": {**AS_IN_THE_PAPER, "layers": (1, 2, 3, 4, 5, 8, 10), "learning_rate": PAPER_RATES},
    }

    vocabulary_size: int | None = redefine(500, "vocabulary_size")
    seed: int = setting(10, "first seed (the settings were chosen on another, 100)", at_least=0)
    seeds: int = redefine(3, "seeds")
    learning_rate: tuple[float, ...] = setting((3e-4, 1e-3, 1e-2), "learning rates of the optimizer", above=0)
    steps: int = setting(2000, "minibatches", at_least=1)
    width: int = redefine(96, "width")
    hidden: int = setting(96, "width of the MLP's hidden layer", at_least=1)

    @property
    def rate(self) -> float:
        """Of a cell: its one learning rate."""
        (rate,) = self.learning_rate
        return rate

    def cells(self) -> list[Self]:
        """One training each: a depth, a learning rate, a seed; what is recorded is judged as a whole."""
        if self.recorded:
            return [self]
        return [
            dataclasses.replace(cell, learning_rate=(rate,))
            for cell in super().cells()
            for rate in self.learning_rate
        ]

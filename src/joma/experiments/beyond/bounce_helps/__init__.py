"""Does the bounce help? A decoder's attention is stopped at the dip, and the loss it costs is measured."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.shared.decoder_settings import TrainsDecoders, redefine
from joma.runs.job import setting

LATEST = 0.75
LEAST_SEEDS = 3
TIMES = ("dip", "earlier", "later")
WAYS = {"projections": "queries and keys frozen", "entropy": "entropy pinned"}


@dataclass(frozen=True, kw_only=True)
class BounceHelps(TrainsDecoders):
    """The poster's claim that nobody tested: the bounce is useless in one layer and useful in several.

    A decoder is trained on real text. Runs that are the same up to the step of the dip (the lowest point of
    the top layer's smoothed attention entropy within the first three quarters) then differ: in one the
    query and key projections of every layer are frozen; in another they go on learning, but a temperature
    per head holds its entropy where it was. All else goes on. The cost is the held-out loss at the end
    minus that of the untouched run with the same seed, batches and dropout. The null does the same at an
    earlier and at a later step, equally far from the dip: a stop costs the more the earlier it is, and the
    mean of the two has none of that. Only runs whose untouched copy bounces say anything of a bounce.

    The preset ``quick`` trains small models on the Python reference at a large learning rate, where the
    dip comes early; ``paper`` uses the model and learning rate of Fig. 6.

    Tables: ``curves`` (every measurement of every run), ``costs`` (one row per run that was stopped),
    ``bounces`` (the untouched runs' dips and rebounds).
    """

    title = (
        "Attention stopped at the dip of its entropy: what the bounce is worth, in one layer and in several"
    )
    reproduces = "JoMA Sec. 5 and poster (a claim without a figure)"
    cost = {"quick": "2 min", "paper": "days"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 3, 5),
            "seeds": 5,
            "steps": 58_000,
            "learning_rate": 1e-4,
            "width": 200,
            "measure_every": 1000,
            "windows": None,
        },
    }

    vocabulary_size: int | None = redefine(400, "vocabulary_size")
    layers: tuple[int, ...] = setting((1, 2), "depths; one of them 1, to compare with", at_least=1)
    seeds: int = redefine(5, "seeds", at_least=LEAST_SEEDS)
    steps: int = setting(240, "minibatches", at_least=1)
    learning_rate: float = redefine(5e-3, "learning_rate")
    width: int = setting(48, "embedding size d, and width of the MLP's hidden layer", at_least=2)
    batch: int = redefine(10, "batch")
    measure_every: int = redefine(10, "measure_every")
    windows: int | None = redefine(40, "windows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.stopping_steps()) < 8:
            raise InputError(
                f"bounce_helps: {self.steps} steps measured every {self.measure_every} leave "
                f"{len(self.stopping_steps())} steps to stop attention at; measure more often."
            )

    def stopping_steps(self) -> list[int]:
        """The measured steps at which attention may be stopped: not at the start, not at the end."""
        return [
            s for s in range(self.measure_every, self.steps, self.measure_every) if s <= LATEST * self.steps
        ]

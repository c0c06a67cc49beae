"""What can be set where the curves of Fig. 6 and Fig. 8 are trained, or read from a record; light."""

from __future__ import annotations

import dataclasses
from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, Self

from joma.core.errors import InputError
from joma.core.files import is_there, user_path
from joma.experiments.shared.decoder_settings import DecoderGrid, redefine
from joma.runs.job import setting

TOGETHER = 5
"""Seeds of a setting from which on their spread is the noise that their dips and rebounds are set against."""
AS_IN_THE_PAPER = {
    "corpus": "wikitext-2",
    "vocabulary_size": None,
    "layers": (1, 2, 5, 10),
    "seeds": 3,
    "steps": 58_000,
    "width": 200,
    "hidden": 200,
    "order": "sequential",
    "restart_optimizer": True,
    "measure_every": 1000,
    "windows": None,
}
"""The authors' script: 20 epochs of WikiText-2, the full vocabulary, Adam created anew at every epoch."""


@dataclass(frozen=True, kw_only=True)
class CurveSettings(DecoderGrid, ABC):
    """Decoders whose attention entropy and stable rank are followed along their training."""

    costless: ClassVar[frozenset[str]] = frozenset({"seed", "learning_rate", "dropout", "clip"})

    corpus: str = redefine("world-english-bible", "corpus")
    vocabulary_size: int | None = redefine(1000, "vocabulary_size")
    tokenizer: str = setting(
        "words", "'words' (basic English), or a Hugging Face tokenizer: hub id or folder"
    )
    steps: int = setting(3500, "minibatches", at_least=1)
    hidden: int = setting(128, "width of the MLP's hidden layer", at_least=1)
    heads: int = setting(1, "attention heads", at_least=1)
    order: str = setting(
        "random",
        "windows at random places, or sequential as the authors read them",
        choices=("random", "sequential"),
    )
    restart_optimizer: bool = setting(False, "create Adam anew at every epoch, as the authors' script does")
    clip: float = setting(0.5, "largest norm of the gradient", above=0)
    measure_every: int = setting(
        50, "steps between measurements (up to 25 times as dense at first)", at_least=1
    )
    windows: int | None = redefine(200, "windows")
    device: str = setting(
        "cpu", "where decoders are trained: cpu, cuda, cuda:1, or auto (CUDA if there is one)"
    )
    precision: str = setting(
        "float32", "of the forward pass's products; bfloat16 is autocast", choices=("float32", "bfloat16")
    )
    authors_curves: str = setting(
        "", "CSV of the authors' recorded curves, to compare with (corpus wikitext-2)"
    )
    recorded: str = setting("", "CSV of recorded curves, judged in the place of a training of our own")

    def __post_init__(self) -> None:
        super().__post_init__()
        points = self.steps // self.measure_every + 1
        if points < 8:
            raise InputError(
                f"{self.name()}: {self.steps} steps measured every {self.measure_every} give {points} "
                f"points, too few to find a dip; measure more often or train longer."
            )

    @property
    def pooled(self) -> bool:
        """Whether depths are judged together, since seeds are too few."""
        return bool(self.recorded) or self.seeds < TOGETHER

    def cells(self) -> list[Self]:
        """One training each: a depth and a seed; what is recorded is judged as a whole."""
        if self.recorded:
            return [self]
        path = user_path(self.corpus)
        corpus = str(path.absolute()) if is_there(path) else self.corpus  # wherever the cell is computed
        return [
            dataclasses.replace(self, layers=(depth,), seed=seed, seeds=1, corpus=corpus)
            for depth, seed in self.trainings()
        ]

    @property
    def depth(self) -> int:
        """Layers of a cell's one decoder."""
        (depth,) = self.layers
        return depth

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured: dense at the start, where an early dip may hide."""
        fine, dense = max(1, self.measure_every // 25), max(1, self.measure_every // 5)
        first = range(0, min(20 * fine, self.steps), fine)
        early = range(0, min(4 * self.measure_every, self.steps), dense)
        late = range(0, self.steps + 1, self.measure_every)
        return sorted({*first, *early, *late, self.steps})

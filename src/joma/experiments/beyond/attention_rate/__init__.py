"""Does attention bounce deeper in a decoder whose W_Q and W_K learn faster? A prediction of JoMA's."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.shared.decoder_settings import TrainsDecoders, redefine
from joma.runs.job import setting

EARLY = (2, 5, 10, 15, 20)
"""Steps at which kappa is measured in any case: the block's law is about weights that begin small."""


@dataclass(frozen=True, kw_only=True)
class AttentionRate(TrainsDecoders):
    """Decoders as those of ``fig6``, whose W_Q and W_K learn at a rate of their own.

    By Theorem 1 the attention logits are kappa/2 sum_k v_k(l)^2, kappa = eta_z/(eta_w T^2), and the block's
    law (``joma.theory.bounce_law``) says that its entropy dips and rebounds the farther the larger kappa is:
    in the block of ``fig5`` by 0 nats at equal rates and by 0.29 at a hundred. The paper trains at equal
    rates alone. Here the ratio of the rates of W_Q and W_K and of all else is varied, seed by seed from the
    same initial weights on the same windows; equal rates are the null. A control at one ratio lets
    everything learn that much faster, so that a larger rate as such can be told from faster attention.

    The preset ``quick`` trains smaller decoders for fewer steps, ``evidence`` those of ``fig6``. Under Adam a
    rate of its own makes each move of W_Q and W_K that many times as long.

    Tables: ``curves`` (attention entropy, held-out loss, kappa and its share of the logits' variance along
    each training), ``bounces`` (dip and rebound of each run's layers; ``variant`` says which rates).
    """

    title = "W_Q and W_K at a rate of their own: is the bounce of a decoder's attention deeper?"
    reproduces = "JoMA Thm 1, Eq. 6, Fig. 6 (a prediction that the paper does not test)"
    cost = {"quick": "2 min", "evidence": "20 min", "paper": "days"}
    presets = {
        "quick": {},
        "evidence": {
            "steps": 2500,
            "width": 128,
            "learning_rate": 1e-3,
            "measure_every": 50,
            "batch": 20,
            "windows": 100,
        },
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 3),
            "steps": 58_000,
            "learning_rate": 1e-4,
            "width": 200,
            "batch": 20,
            "measure_every": 1000,
            "windows": None,
        },
    }

    corpus: str = redefine("world-english-bible", "corpus")
    vocabulary_size: int | None = redefine(500, "vocabulary_size")
    ratios: tuple[float, ...] = setting(
        (1.0, 3.0, 10.0), "rates of W_Q and W_K over that of all else, rising; one of them 1", above=0.0
    )
    control: float = setting(3.0, "how much faster all learns in the control (one of the ratios)", above=1.0)
    seed: int = setting(20, "first seed (fig6 is judged on 10 to 14)", at_least=0)
    seeds: int = redefine(5, "seeds", at_least=5)
    steps: int = setting(900, "minibatches", at_least=1)
    learning_rate: float = redefine(4e-3, "learning_rate")
    width: int = setting(48, "embedding size d, and width of the MLP's hidden layer", at_least=2)
    batch: int = redefine(10, "batch")
    measure_every: int = redefine(25, "measure_every")
    windows: int | None = redefine(40, "windows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.ratios) != sorted(set(self.ratios)) or not self.ratios:
            raise InputError(f"attention_rate: setting ratios = {self.ratios!r} must be rising.")
        if self.steps // self.measure_every < 8:
            raise InputError(
                f"attention_rate: {self.steps} steps measured every {self.measure_every} give too few points "
                "to find a dip; measure more often or train longer."
            )

    @property
    def attention_ratio(self) -> float:
        """Of a cell, which has one ratio: that one."""
        return self.ratios[0]

    def measured_steps(self) -> list[int]:
        """Evenly spaced, and a few at the start."""
        early = [step for step in EARLY if step < self.steps]
        return sorted({*super().measured_steps(), *early})


def attention_name(ratio: float) -> str:
    """The variant whose W_Q and W_K learn ``ratio`` times as fast as the rest."""
    return f"W_Q and W_K x {ratio:g}"


def all_name(ratio: float) -> str:
    """The variant all of which learns ``ratio`` times as fast."""
    return f"all x {ratio:g}"

"""The poster asks why over-parametrisation is needed: how many neurons until every latent has found one?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class OverParametrisation(Experiment):
    """Blocks of K neurons learn which of several latents is on; a latent is found if a neuron follows it.

    A sequence has one latent, whose tokens appear, each token flipped with a small probability. A block (one
    query, exp attention, ReLU) and a linear layer on it learn the latent by full-batch gradient descent on
    cross-entropy. A latent is found if some neuron correlates with it by more than ``threshold`` over the
    sequences. What is asked is the probability that all of them are, over initial weights.

    If neurons fell into basins one by one, each for itself, the coupon-collector's law would give it from the
    basins of blocks with a single neuron: sum over sets S of latents of (-1)^|S| (1 - sum_S p_l)^K. The null
    is best of K chance matches: the same blocks untrained.

    Tables: ``coverage`` (seed, neurons, run: trained, untrained, law), ``basins`` (seed, latent: share of
    single neurons that find it).
    """

    title = "How many neurons until every latent has found one? Beside the coupon-collector's law"
    reproduces = "JoMA poster, future work (why over-parametrisation)"
    cost = {"quick": "1 min", "paper": "30 min"}
    presets = {
        "quick": {},
        "paper": {"latents": 8, "neurons": (8, 12, 16, 24, 32, 48, 64), "networks": 100, "steps": 1000},
    }

    latents: int = setting(5, "latents, one of which is on", at_least=2, at_most=12)
    tokens: int = setting(2, "tokens of each latent", at_least=1, at_most=20)
    flip: float = setting(
        0.1, "probability that a token is not as its latent has it", at_least=0.0, below=0.5
    )
    neurons: tuple[int, ...] = setting((5, 8, 12, 16, 24), "sizes K of the blocks", at_least=1)
    networks: int = setting(40, "blocks of each size and seed", at_least=10)
    single: int = setting(200, "blocks of a single neuron and seed", at_least=50)
    sequences: int = setting(300, "sequences of each seed", at_least=50)
    steps: int = setting(400, "gradient steps", at_least=10)
    rate: float = setting(0.3, "learning rate", above=0.0)
    scale: float = setting(0.1, "standard deviation of the initial weights", above=0.0, at_most=1.0)
    threshold: float = setting(
        0.7, "correlation above which a neuron has found a latent", above=0.0, below=1.0
    )
    seeds: int = setting(5, "sequences and initial weights", at_least=5, at_most=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.neurons) < 2 or list(self.neurons) != sorted(set(self.neurons)):
            raise InputError(
                f"over_parametrisation: setting neurons = {self.neurons!r}; give at least two sizes, rising."
            )

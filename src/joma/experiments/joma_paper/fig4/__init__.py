"""JoMA Fig. 4: along Eq. 6, salient components are learned first; attention entropy dips and bounces back."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

DYNAMICS = ("script", "equation 6")
VARIANTS = ("attention", "equal mu", "no attention")
ACTING, CAPTION = 2.0, 1.0
"""The exponent of attention is v^2/T: what Eq. 6 multiplies by, what the caption says."""


@dataclass(frozen=True, kw_only=True)
class Fig4(Experiment):
    """Components of ``v`` on their way to critical points ``mu`` of unlike size, with attention.

    Eq. 6 is the paper's equation for the block, not the flow of the block itself, whose gate reads the
    attended input; nothing here is a claim about the block. Two dynamics, because the paper's figure is not
    its equation either: the authors' script iterates w += eta (mu - w) softmax(w^2/3), and the text and
    caption speak of Eq. 6, v' = (mu - v) exp(v^2/2), and of entropy(softmax(v^2)). Eq. 6 is solved exactly.
    Each is also run where the effect must vanish: all ``mu`` equal (nothing to be salient), and attention
    removed.

    Tables: ``components`` (mu), ``weights`` (courses of v), ``entropy`` (curves), ``extremes`` (start,
    minimum, where it lies, end and rebound of each curve, from all steps), ``half_times`` (when each one
    reaches half its mu), ``clocks`` (the time of Eq. 6 that each component of the script tells, for the
    paper's exponent and for the script's). That Eq. 6 attends with exp(v^2/2), not with the caption's
    exp(v^2), is checked by ``joma check fig4``.
    """

    title = "Eq. 6 (not the block): salient first; entropy dips and rebounds (two dynamics)"
    reproduces = "JoMA Fig. 4"
    presets = {"quick": {}, "paper": {}}

    components: int = setting(10, "number of components of v", at_least=2, at_most=1000)
    smallest_mu: float = setting(1.0, "mu is drawn uniformly from here", above=0.0, at_most=7.0)
    largest_mu: float = setting(4.0, "to here", above=0.0, at_most=7.0)
    initial: float = setting(0.05, "v at the start, every component", at_least=0.0, below=1.0)
    iterations: int = setting(5000, "iterations of the script", at_least=100, at_most=1_000_000)
    learning_rate: float = setting(0.02, "learning rate of the script", above=0.0, at_most=0.5)
    temperature: float = setting(3.0, "T of the script's softmax(w^2/T)", above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.largest_mu <= self.smallest_mu:
            raise InputError(
                f"fig4: setting largest_mu = {self.largest_mu:g} is not above smallest_mu = "
                f"{self.smallest_mu:g}; without a spread of mu nothing is salient."
            )
        if self.initial >= self.smallest_mu:
            raise InputError(
                f"fig4: setting initial = {self.initial:g} is not below smallest_mu = "
                f"{self.smallest_mu:g}; components must start below their critical points."
            )

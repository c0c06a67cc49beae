"""JoMA Fig. 3: some components of a node's weights grow on, the others saturate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.base import Experiment
from joma.runs.job import setting

ATTENTION = ("trained", "frozen")
GROWING = 0.1
"""A component still grows if the last quarter of training changed it by more than this share."""


@dataclass(frozen=True, kw_only=True)
class Fig3(Experiment):
    """The weights ``v_0`` of the node of class 0, token by token, in the training of Fig. 2.

    Linear nodes, softmax attention, cross-entropy. Theorem 2 is derived for exp attention with stationary
    gradients; it says that the token of the largest ``|Delta_.l|`` grows without bound and every other
    one stops at ``sqrt(2/kappa) erfinv(|Delta_.l| / |Delta_max|)``, ``kappa = eta_z / (eta_w T^2)``, along
    its own direction (K > 1, corrected). Here ``Delta`` is taken at the start of training. The null is
    the same training with attention frozen. The authors' code stops at 2,000 steps; this goes on to
    4,000, so that saturation can be told from slowness.

    Tables: ``components`` (v_0 in training), ``final`` (per token: weight and its growth in the last
    quarter, the norm over nodes and its growth, the drive, and Theorem 2's limits).
    """

    title = "Winner takes all under softmax attention: who grows, who saturates, where"
    reproduces = "JoMA Fig. 3"
    cost = {"paper": "20 s"}
    presets = {"quick": {}, "paper": {"runs": 20}}

    runs: int = setting(5, "number of seeds, trained side by side", at_least=1, at_most=1000)
    steps: int = setting(4000, "gradient steps", at_least=8, at_most=1_000_000)
    rate: float = setting(0.1, "learning rate of weights and logits", above=0.0, at_most=10.0)
    temperature: float = setting(0.5, "T of the attention", at_least=0.05, at_most=100.0)
    data: Literal["smooth", "random"] = setting(
        "smooth", "class-conditional frequencies", choices=("smooth", "random")
    )
    classes: int = setting(20, "classes, as many as hidden nodes", at_least=2)
    distinct: int = setting(10, "tokens of the wandering bump", at_least=1)
    common: int = setting(10, "tokens of noise", at_least=1)
    record_every: int = setting(20, "steps between two points of a curve", at_least=1)

"""JoMA's linear case and Scan&Snap: the same dynamics, but for one normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

JOMA = "JoMA block"
PLAIN = "Y/Z"
NORMALISED = "Y/Z normalised"
KEYS = ["next_tokens", "common_weight", "eta_z"]


@dataclass(frozen=True, kw_only=True)
class LinearAgrees(Experiment):
    """The block of JoMA with linear activation and softmax attention beside Scan&Snap's Y and Z.

    JoMA's hidden nodes are the logits of a cross-entropy loss, its contextual tokens the frequencies P(l|n):
    then w_k is column k of Y and z is Z's row, and both theories speak of one flow, except that Scan&Snap
    divides what attention gathers by its length. Three flows from Y = Z = 0 on the same data: the block
    (simulated by JoMA's equations, all M nodes), Y/Z without that division, Y/Z with it.

    Tables: ``agreement`` (differences, invariants and fates for each data set and eta_Z), ``curves``
    (entropies and the common token's share over time), ``logits`` (where each token's logit ends),
    ``uninformative`` (the same where the context says nothing about the next token, because
    all share one distribution: the null).
    """

    title = "JoMA's linear case beside Scan&Snap: one flow, but for a normalisation"
    reproduces = "JoMA Sec. 1 and 4 (linear activation), Scan&Snap Thm 2"
    cost = {"quick": "20 s", "paper": "2 min"}
    presets = {"quick": {}, "paper": {"next_tokens": (2, 3, 5), "common_weights": (0.5, 1.0, 2.0, 5.0)}}
    next_tokens: tuple[int, ...] = setting((2, 3), "K of the data sets", at_least=2)
    common_weights: tuple[float, ...] = setting(
        (0.5, 5.0), "weight of the common token before normalisation; distinct ones 0.1 to 1", above=0.0
    )
    eta_z: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0), "learning rates of attention; eta_Y = 1", above=0.0, at_most=100.0
    )
    distinct: int = setting(6, "distinct tokens of each next token", at_least=2)
    horizon: float = setting(1e4, "time at the end", at_least=10.0, at_most=1e6)

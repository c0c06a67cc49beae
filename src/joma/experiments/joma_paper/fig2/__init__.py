"""JoMA Fig. 2: softmax attention's logits against Theorem 1's closed form, smooth and random classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.base import Experiment
from joma.runs.job import setting

DATA: tuple[Literal["smooth", "random"], ...] = ("smooth", "random")


@dataclass(frozen=True, kw_only=True)
class Fig2(Experiment):
    """How well ``z_hat = 1/2 sum_k (v_k^2 - |v_k|^2 bbar) / T + c`` foretells the logits ``z`` in training.

    Linear nodes, one per class, cross-entropy, full-batch gradient descent (K = 20 classes, 20 tokens,
    T = 0.5, rate 0.1). Measured: the normalised correlation of ``z`` with ``z_hat`` and with its parts
    ``z_hat1 = 1/2 sum v_k^2 / T`` and ``z_hat2 = -1/2 sum |v_k|^2 bbar / T``, as in the paper; and the
    relative error ``|z - z_hat| / |z|``, which a correlation hides, for: the paper's formula, Eq. 17
    summed with the true moving ``bbar``, the guess that ``z`` never moves, and the exact integral
    identity (with step size: off by O(rate); with the squared steps counted: exact).

    The authors' code takes the data's mean for ``bbar``, T = 0.5 where the text has none, the
    cross-entropy gradient where the text has ``1[y = k]``, and no seed; ``runs`` seeds are shown here.

    Tables: ``curves`` (run, data, step, metric, value), ``summary`` (final and least values over all
    steps), ``frequencies`` (the first run's data).
    """

    title = "Theorem 1 under softmax attention: high correlation, wrong scale"
    reproduces = "JoMA Fig. 2"
    cost = {"paper": "10 s"}
    presets = {"quick": {}, "paper": {"runs": 20}}

    runs: int = setting(5, "number of seeds, trained side by side", at_least=1, at_most=1000)
    steps: int = setting(2000, "gradient steps", at_least=10, at_most=1_000_000)
    rate: float = setting(0.1, "learning rate of weights and logits", above=0.0, at_most=10.0)
    temperature: float = setting(0.5, "T of the attention", at_least=0.05, at_most=100.0)
    classes: int = setting(20, "classes, as many as hidden nodes", at_least=2)
    distinct: int = setting(10, "tokens of the wandering bump (smooth classes)", at_least=1)
    common: int = setting(10, "tokens of noise", at_least=1)
    record_every: int = setting(10, "steps between two points of a curve", at_least=1)

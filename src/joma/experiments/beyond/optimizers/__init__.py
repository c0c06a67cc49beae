"""Theorem 1 under the optimizers that are really used: momentum, Nesterov, weight decay, Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.base import Experiment
from joma.runs.job import setting

ATTENTION: tuple[Literal["linear", "exp"], ...] = ("linear", "exp")
OPTIMIZERS = ("sgd", "momentum", "nesterov", "weight decay", "adam", "adamw")
WITH_LAW = ("sgd", "momentum", "weight decay")


@dataclass(frozen=True, kw_only=True)
class Optimizers(Experiment):
    """The block trained on class-conditional data by six optimizers; how far Theorem 1's constant moves.

    The theorem is about gradient flow. Here the same data, initial states and cross-entropy gradient go
    through discrete training with each optimizer, and the constant ``c = z - sum_k v_k^2 / (2T)`` (exp
    attention; ``z^2 - sum_k v_k^2``, linear) is followed. Where ``joma.theory.optimizers`` has a law for
    its drift (plain descent, momentum, weight decay), what the law leaves is followed too. Each run is
    repeated with smaller steps over the same course: a drift that is owed to the steps vanishes with them.

    Rates: momentum and Nesterov run at ``rate * (1 - beta)``, Adam at ``adam_rate``; weight decay acts on
    weights and logits alike. Tables: ``drift`` (courses, relative to how far the MLP's side moved), ``rates``
    (drift at the end against the step size), ``attention`` (entropy of the attention in nats; spread of |v|
    over the tokens).
    """

    title = "Theorem 1's invariant under momentum, weight decay and Adam"
    reproduces = "JoMA Thm 1 beyond gradient flow (an open question of the paper)"
    cost = {"quick": "20 s", "paper": "10 min"}
    presets = {"quick": {}, "paper": {"classes": 20, "tokens": 20, "seeds": 10, "steps": 2000, "halvings": 3}}
    seeds: int = setting(4, "data sets and initial states, trained side by side", at_least=1, at_most=1000)
    classes: int = setting(8, "classes, and MLP nodes", at_least=2, at_most=200)
    tokens: int = setting(10, "contextual tokens", at_least=2, at_most=400)
    steps: int = setting(600, "steps at the largest rate", at_least=10, at_most=100_000)
    rate: float = setting(0.05, "learning rate of plain descent", above=0.0)
    adam_rate: float = setting(0.002, "learning rate of Adam", above=0.0)
    momentum: float = setting(0.9, "beta of momentum and Nesterov", at_least=0.0, below=1.0)
    weight_decay: float = setting(0.03, "lambda of weight decay and AdamW", at_least=0.0)
    halvings: int = setting(2, "how often the steps are halved", at_least=1, at_most=8)

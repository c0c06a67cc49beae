"""Scan&Snap Fig. 4: attention leaves the common tokens and gathers on the strongest distinct ones."""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

NULL = "uninformative"
DATA = ("real", NULL)


@dataclass(frozen=True, kw_only=True)
class SnapFig4(Experiment):
    """c_n over training, token by token, in the Y/Z model from zero weights.

    The authors' setting: two last tokens with one next token each, 10 common tokens, 10 distinct tokens of
    graded probability for each next token, eta_Y = eta_Z = 1, momentum 0.9, 100 steps of 128 sequences of
    length 128. They show one run (seed 2); the claims here are judged over ``seeds`` runs, and again in
    the theorem's limit of infinitely long sequences (``length`` inf in the table), because in sequences
    of 128 the rarest distinct tokens, seen about once in each, do not all rise.

    The null: each seed once more where the context says nothing of the next token, because all next tokens
    share one distribution. What happens to the same tokens' logits there is not owed to prediction.

    Tables: ``tokens`` (attention mass c_n and logit z of every token of every class at recorded steps).
    """

    title = "Common tokens are suppressed, distinct ones win: attention mass over training"
    reproduces = "Scan&Snap Fig. 4"
    presets = {"quick": {}, "paper": {}}
    last_tokens: int = setting(2, "number of last tokens", at_least=1)
    next_per_last: int = setting(1, "next tokens for each last token", at_least=1)
    common: int = setting(10, "common tokens", at_least=1)
    distinct: int = setting(10, "distinct tokens of each next token", at_least=2)
    eta_y: float = setting(1.0, "learning rate of Y", above=0.0)
    eta_z: float = setting(1.0, "learning rate of Z", above=0.0)
    seeds: int = setting(10, "runs, with seeds from seed + 1 on", at_least=1)
    steps: int = setting(100, "SGD steps", at_least=1)
    batch: int = setting(128, "sequences in a batch", at_least=1)
    length: int = setting(128, "length of a sequence, the last token included", at_least=2)
    momentum: float = setting(0.9, "momentum of SGD, for Y and Z", at_least=0.0, below=1.0)

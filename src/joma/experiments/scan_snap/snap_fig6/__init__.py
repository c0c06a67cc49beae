"""Scan&Snap Fig. 6: how sparse attention gets, against the two learning rates and the number of classes."""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

CELL = ["last_tokens", "eta_z", "ratio"]


@dataclass(frozen=True, kw_only=True)
class SnapFig6(Experiment):
    """Entropy of c_n over the distinct tokens of n, after 100 SGD steps of the Y/Z model, mean over n.

    The authors' setting: 10 common tokens, 10 distinct tokens of graded probability for each next token,
    two next tokens for each last token, weights uniform in +-1/sqrt(M), batches of 128 sequences of length
    128, momentum 0.9, eta_Y = ratio * eta_Z. Their ten runs of a cell are not ten fresh draws: seeds 1 to
    10 fix the initial weights and the order of the classes for all rates alike, and the largest rates
    leave heavy tails. So the default ``streams="authors"`` takes both from the same generators (PyTorch's
    for the weights, Python's for the classes), seeds counted from ``seed + 1``; only the contextual tokens
    are drawn anew. With ``streams="fresh"`` everything is; then cells of one panel are off together.

    Tables: ``entropy`` (a row for each run, before and after training), ``cells`` (mean, deviation and
    standard error over seeds), ``authors`` (the table given as ``authors_table``, or empty).
    """

    title = "Sparsity of attention against learning rates and number of classes (64 cells x 10 seeds)"
    reproduces = "Scan&Snap Fig. 6"
    cost = {"quick": "40 s", "paper": "40 s"}
    presets = {"quick": {}, "paper": {}}
    last_tokens: tuple[int, ...] = setting((1, 3, 5, 10), "numbers of last tokens", at_least=1)
    eta_z: tuple[float, ...] = setting((0.5, 1.0, 2.0, 3.0), "learning rates of Z", above=0.0)
    ratios: tuple[float, ...] = setting((1.0, 2.0, 5.0, 10.0), "eta_Y over eta_Z", above=0.0)
    seeds: int = setting(10, "runs of each cell", at_least=2)
    steps: int = setting(100, "SGD steps", at_least=1)
    batch: int = setting(128, "sequences in a batch", at_least=1)
    length: int = setting(128, "length of a sequence, the last token included", at_least=2)
    momentum: float = setting(0.9, "momentum of SGD, for Y and Z", at_least=0.0, below=1.0)
    streams: str = setting("authors", "where random numbers come from", choices=("authors", "fresh"))
    authors_table: str = setting("", "CSV of the authors' means to compare with; empty for none")

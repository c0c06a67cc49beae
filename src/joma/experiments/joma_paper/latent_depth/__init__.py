"""The poster's deep and shallow latent distributions: does attention find out how deep the hierarchy is?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

DATA = ("deep", "shallow")
AGAIN = "shallow, again"
MODELS = {"attention": "attention", "bag": "bag of tokens"}


@dataclass(frozen=True, kw_only=True)
class LatentDepth(Experiment):
    """One layer with the same settings on a deep and on a shallow hierarchy of the same tokens.

    Deep: a binary tree HBLT(rho) with 2^(L-1) tokens. Shallow: the same top latent, all tokens directly
    below it, with an edge correlation that gives the same mean correlation between two tokens. Every token
    m in turn is the query; from the other tokens of its sequence the layer predicts whether m is there,
    h_m = bias_m + sum_l b_ml v_ml with softmax attention b over the tokens present (and one that always
    is), logistic loss, full-batch gradient descent. The bag of tokens is the same with uniform attention
    for good. Losses are held-out and compared with the Bayes-optimal prediction, computed by message
    passing in the true tree: 0 is the optimum, 1 the prediction from the token's frequency alone.

    Everything is done once more on fresh data of the shallow distribution: what deep and shallow differ by
    is set against what two samples of one distribution differ by.

    Tables: ``losses`` (per step), ``attention`` (at the end: attention logit and weight of every pair,
    with the height of its ancestor in the deep tree, which means nothing in the shallow one), ``growth``
    (association per height along training: attention, in units of uniform attention, times weight v).
    """

    title = "Deep and shallow latent distributions: hierarchy-agnostic learning, against a bag of tokens"
    reproduces = "JoMA poster (deep and shallow latent distribution), Sec. 5"
    cost = {"paper": "10 min"}
    presets = {"quick": {}, "paper": {"samples": 10_000, "seeds": 8, "steps": 3000}}
    depth: int = setting(
        5, "L of the deep tree, edges from the class label to a token", at_least=3, at_most=6
    )
    edge_correlation: float = setting(0.9, "rho of the deep tree", above=0.0, below=1.0)
    samples: int = setting(1000, "sequences trained on; as many are held out", at_least=20)
    steps: int = setting(1000, "gradient steps", at_least=10)
    learning_rate: float = setting(1.0, "step size of the mean loss per query", above=0.0)
    measure_every: int = setting(20, "steps between measurements", at_least=1)
    seeds: int = setting(5, "data sets and initial weights", at_least=2)

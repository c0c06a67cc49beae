"""Two data sets with the same co-occurrences, one from a tree and one without: what needs the hierarchy?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

TREE, PAIRS = "tree", "same pairs, no tree"
LAWS = (TREE, PAIRS)
STOPS = {"earlier": 0.5, "dip": 1.0, "later": 1.5}
"""Attention stops where its entropy is least, or at this multiple of that step."""


@dataclass(frozen=True, kw_only=True)
class TreeNull(Experiment):
    """The null of every claim about hierarchy: the tree's own co-occurrences, without the tree.

    Theorem 5 gives the probability of every pair of tokens of the tree HBLT(rho). ``same pairs, no tree`` is
    the law of largest entropy with these pairs: it has no latent, and all that more than two tokens have to
    do with each other follows from the pairs. Both laws are exact, over all 2^8 sequences of eight tokens.
    What a network does on both alike, it does because of co-occurrences; only what differs is owed to the
    hierarchy.

    On both are measured: the block of ``fig5`` (order of association, rebound) on the exact contexts; the
    layer of ``latent_depth`` (attention's gain over a bag of tokens, attention to the sibling, how much
    the far are slowed) on drawn sequences; the stack of ``deep_hierarchy`` (layer by layer, families, depth,
    and what attention learns after the dip, which ``bounce_helps`` asks of decoders); and the correlation of
    the stack's units with the tree's latents, as in ``table1``. The latents are those that the tokens tell,
    E[latent | tokens] under the tree, a function of the tokens that exists on both.

    Tables: ``laws`` (moments of orders 1 to 4 by which the laws agree or differ), ``block`` (by law and
    kappa), ``statistics`` (by law and seed).
    """

    title = "Hierarchy against its own co-occurrences: a tree, and the same pairs without one"
    reproduces = "the null of JoMA Sec. 5, Table 1 and Fig. 5"
    cost = {"quick": "2 min", "paper": "30 min"}
    presets = {
        "quick": {},
        "paper": {"seeds": 20, "layer_seeds": 40, "samples": 10_000, "sequences": 100_000},
    }

    edge_correlation: float = setting(0.8, "rho of the tree", above=0.0, below=1.0)
    seeds: int = setting(5, "sequences and initial weights", at_least=5, at_most=1000)
    layer_seeds: int = setting(15, "the same of the layer, which is quick", at_least=5, at_most=1000)
    samples: int = setting(1000, "sequences that the layer is trained on; as many are held out", at_least=20)
    layer_steps: int = setting(600, "gradient steps of the layer", at_least=10)
    sequences: int = setting(20_000, "sequences that the stack learns from", at_least=100)
    stack_steps: int = setting(200, "gradient steps of the stack", at_least=20)
    stack_rate: float = setting(0.04, "learning rate of the stack", above=0.0)
    kappas: tuple[float, ...] = setting((1.0, 10.0, 30.0), "eta_z/eta_w of the block", above=0.0)
    time: float = setting(120.0, "end of the block's training", above=0.0)

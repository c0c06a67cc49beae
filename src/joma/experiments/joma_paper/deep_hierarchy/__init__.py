"""JoMA Fig. 5(c): are siblings associated in layer 1 before their families meet in layer 2?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

TREE, SHUFFLED, SHUFFLED_CLASSES = "tree", "shuffled tree", "shuffled classes"
FROZEN, WEAK, SINGLE, LONE = "frozen attention", "weak attention", "single layer", "lone cousins"
STOPS = {"stopped earlier": 0.5, "stopped at the dip": 1.0, "stopped later": 1.5}
"""Attention stops where its entropy is least, or at this multiple of that step."""
SHUFFLED_STOPS = {f"{SHUFFLED}, {name}": times for name, times in STOPS.items()}
"""The same on the shuffled tree, at the dip of its own."""
DECODER = "decoder"
RUNS = {
    "tokens": (TREE, SHUFFLED, FROZEN, WEAK, SINGLE, LONE),
    "classes": (TREE, SHUFFLED, SHUFFLED_CLASSES, FROZEN, *STOPS, *SHUFFLED_STOPS),
    DECODER: (TREE, SHUFFLED),
}
"""What is trained for -> what it is trained on, or how."""
TOPS = 2
"""Trees side by side, independent of each other: what a query has no business with."""


@dataclass(frozen=True, kw_only=True)
class DeepHierarchy(Experiment):
    """A stack of JoMA blocks with one query per token, on sequences of two independent binary trees.

    Layer 1 reads the tokens of the sequence, each further layer the units of all queries that are at hand;
    the layers add up in a residual stream. Two things are learned, by full-batch gradient descent.
    ``tokens``: each query m tells contexts with token m from those without it (as in ``fig5``, whose argument
    it is), m itself hidden from all layers. ``classes``: the label y_0, which says which trees are on.

    The association of a query with a token (layer 1) or with another query's units (layer s) is what its
    sum_k v_k^2 gains, which under Theorem 1 is twice what its attention logit gains; it is averaged over all
    pairs at one height of the common latent ancestor: 0 the query itself, 1 siblings, 2 cousins, the largest
    one the other tree. An ordinary decoder (``decoder``; in ``paper``, or with --decoder-steps) reads the
    contexts in random order and answers the same questions; its associations are its attention logits.

    Runs beside the real one: the shuffled tree (tokens of a tree permuted anew in every sequence), shuffled
    classes (labels dealt anew), frozen attention (W_Q and W_K, hence z, stay at the start), weak attention
    (kappa = 1), a single layer with as many weights, lone cousins (every second family has one token only,
    which nobody else can pick up), and attention that stops at the dip of its entropy, earlier or later, on
    the tree and on the shuffled tree.

    With the default kappa the siblings' saliency, sqrt(kappa) |u|, is about 3, that of Fig. 4.

    Tables: ``associations`` (task, run, seed, time, layer, height), ``losses`` (excess loss in time: 0 is
    the best that the context allows, 1 the prediction without it), ``entropy`` (mean over queries of the
    entropy of layer 1's attention to the other tokens; the decoder's to the whole row).
    """

    title = "Siblings first, families a layer later? Trees of tokens in a stack of JoMA blocks"
    reproduces = "JoMA Fig. 5(c), Sec. 5"
    cost = {"quick": "2 min", "decoder": "5 min", "paper": "3 h"}
    presets = {
        "quick": {},
        "decoder": {"decoder_steps": 4000},
        "paper": {"levels": 3, "layers": 3, "sequences": 4000, "decoder_steps": 4000},
    }

    levels: int = setting(2, "levels of latents above the tokens, the top included", at_least=2, at_most=4)
    layers: int = setting(2, "layers of the stack", at_least=2, at_most=6)
    units: int = setting(4, "units of each query and layer, an even number", at_least=2, at_most=64)
    edge_correlation: float = setting(0.8, "rho", above=0.0, below=1.0)
    sequences: int = setting(20_000, "sequences drawn", at_least=100)
    scale: float = setting(0.02, "standard deviation of the weights at the start", above=0.0, at_most=1.0)
    steps: int = setting(400, "gradient steps", at_least=20)
    rate: float = setting(0.02, "learning rate for tokens, of the loss summed over queries", above=0.0)
    class_rate: float = setting(0.25, "learning rate for classes", above=0.0)
    kappa: float = setting(20.0, "rate of attention over that of the weights", above=0.0, at_most=1000.0)
    seeds: int = setting(5, "sequences and initial weights", at_least=5, at_most=1000)
    decoder_steps: int = setting(
        0, "steps of Adam of an ordinary decoder that is asked about tokens; 0 leaves it out", at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < self.levels:
            raise InputError(
                f"deep_hierarchy: a tree of {self.levels} levels is deeper than a stack of {self.layers} "
                "layers; give at least as many layers."
            )
        if self.units % 2:
            raise InputError(f"deep_hierarchy: setting units = {self.units} is odd; give an even number.")

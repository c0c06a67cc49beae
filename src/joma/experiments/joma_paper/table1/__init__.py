"""JoMA Table 1: do hidden neurons stand for the latents of a hierarchy, and is that learned?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

CELL = ["classes", "children", "latents_s0", "latents_s1"]


@dataclass(frozen=True, kw_only=True)
class Table1(Experiment):
    """JoMA Table 1: normalised correlation (NCorr) of each latent with its best neuron of the same layer.

    A class fixes a set of latents at s = 1, each a set of latents at s = 0, each a set of tokens
    (``joma.data.hierarchy``); a three-layer network learns to tell the class. The MLP neurons of layer
    s (maximum over positions) are correlated with the latents of level s, over the C sequences, at
    chosen steps. Step 0 is the untrained network: the null that the paper does not show. Beside the plain
    reading (each class once, largest correlation, best match, latents that no class uses left out) every
    other reading of the paper's sentence is recorded (``table1.readings``), and the
    mean over shuffles of the classes.

    ``paper`` is the paper's own scale: 12 cells, 5 seeds, d = 1024, 10,000 steps at learning rate 1e-5 (the
    authors' table script selects 1e-4); ``cell`` is one cell of it with one seed; ``reduced`` all 12 cells
    with 5 seeds, but d = 256 and few steps. Not said in the paper, and chosen: one head, no causal mask,
    the order of the tokens that of the tree.
    """

    title = "hidden neurons against the latents of a hierarchy, trained and untrained"
    reproduces = "JoMA Table 1"
    cost = {"quick": "1 min", "reduced": "20 min", "cell": "30 min", "paper": "days"}
    presets = {
        "quick": {},
        "reduced": {
            "classes": (20, 30, 50),
            "children": (2, 3),
            "seeds": 5,
            "width": 256,
            "steps": 300,
            "measure_every": 100,
        },
        "cell": {
            "bottom_latents": (10,),
            "top_latents": (20,),
            "seeds": 1,
            "width": 1024,
            "steps": 10_000,
            "learning_rate": 1e-5,
            "measure_every": 200,
        },
        "paper": {
            "classes": (20, 30, 50),
            "children": (2, 3),
            "seeds": 5,
            "width": 1024,
            "steps": 10_000,
            "learning_rate": 1e-5,
            "measure_every": 500,
        },
    }
    classes: tuple[int, ...] = setting((20,), "numbers of classes C", at_least=2)
    children: tuple[int, ...] = setting((2,), "members of each latent N_ch", at_least=1)
    bottom_latents: tuple[int, ...] = setting(
        (10, 20), "N_0, one for each pair (N_0, N_1)", at_least=1, repeats=True
    )
    top_latents: tuple[int, ...] = setting(
        (20, 30), "N_1, one for each pair (N_0, N_1)", at_least=1, repeats=True
    )
    seeds: int = setting(3, "runs per cell, with seeds seed, seed + 1, ...", at_least=1)
    width: int = setting(128, "embedding size d", at_least=1)
    heads: int = setting(1, "attention heads", at_least=1)
    causal: bool = setting(False, "mask later positions")
    vocabulary_size: int = setting(100, "tokens M; the MLP has 4 M neurons", at_least=1)
    length: int = setting(30, "positions L of a padded sequence", at_least=1)
    steps: int = setting(200, "minibatches", at_least=1)
    learning_rate: float = setting(1e-4, "Adam's learning rate", above=0)
    weight_decay: float = setting(1e-4, "Adam's weight decay (added to the gradient)", at_least=0)
    batch: int = setting(128, "sequences in a minibatch", at_least=1)
    measure_every: int = setting(50, "steps between measurements", at_least=1)
    permutations: int = setting(50, "shuffles of the classes for the null", at_least=1)
    test: int = setting(1000, "sequences of a test set, for that reading", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.bottom_latents) != len(self.top_latents) or not (
            self.bottom_latents and self.classes and self.children
        ):
            raise InputError(
                f"table1: bottom_latents = {self.bottom_latents}, top_latents = {self.top_latents}, "
                f"classes = {self.classes}, children = {self.children}; give as many N_0 as N_1, none empty."
            )

    def trainings(self) -> list[tuple[int, int, int, int]]:
        """(C, N_ch, N_0, N_1) of every cell."""
        pairs = list(zip(self.bottom_latents, self.top_latents, strict=True))
        return [(c, n, low, high) for c in self.classes for n in self.children for low, high in pairs]

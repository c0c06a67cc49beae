"""Scan&Snap's further experiments: the YZ model in several layers on real text, beside the ordinary one."""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

MODELS = ("YZ", "YZ, no residual", "YZ, identity start", "YZ, low rank", "decoder")


@dataclass(frozen=True, kw_only=True)
class SnapYzLayers(Experiment):
    """Held-out loss against depth: the YZ model, without its residual, in low rank, and the decoder.

    The slides give one page without numbers: the YZ parametrisation works on WikiText-2, even in several
    layers; performance drops beyond three; perplexity is higher than the ordinary transformer's; the
    residual connection is important. The model is theirs (one-hot states, own token included, 2-norm,
    ReLU between layers, weights uniform in +-1/sqrt(M), Adam, clipping at 0.5). Their default start from
    zero is left out: with more than one layer it has no gradient.

    Beside it: Y and Z as products of two factors of rank ``rank`` (what separate embeddings for each role
    would be); the ordinary decoder (embeddings, positions, MLP); and, with setting ``models`` (and in
    ``paper``), a start in which lower layers pass on what they mix, which asks whether depth hurts because
    of the start. The best rate depends on model and depth, so each takes, on its first seed, the best of
    ``learning_rates``; further seeds use that one. A run's loss is its lowest held-out loss over training
    (small texts are overfitted). Depth is not called harmful while the deep models' loss still falls.

    ``quick`` must keep Y and Z of M x M small: 256 words of a small text. ``paper`` leaves the free
    matrices to 4,000 words (the low-rank form alone fits the full vocabulary).

    Tables: ``curves`` (loss and attention entropy along training), ``losses`` (one row per run),
    ``baselines`` (unigram and bigram models).
    """

    title = "the YZ model in several layers on real text: depth, residual, rank, and the ordinary decoder"
    reproduces = "Scan&Snap slides, more ongoing experiments"
    cost = {"quick": "3 min", "paper": "a day"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": 4000,
            "models": MODELS,
            "depths": (1, 2, 3, 4, 6),
            "seeds": 3,
            "steps": 10_000,
            "measure_every": 500,
            "batch": 20,
            "length": 35,
            "rank": 200,
            "width": 200,
            "learning_rates": (1e-4, 1e-3, 1e-2),
            "dropout": 0.2,
        },
    }
    corpus: str = setting("python-reference", "corpus name, text file, or folder of train/valid/test files")
    vocabulary_size: int | None = setting(
        256, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    models: tuple[str, ...] = setting(
        ("YZ", "YZ, no residual", "YZ, low rank", "decoder"), "models that are trained", choices=MODELS
    )
    depths: tuple[int, ...] = setting((1, 2, 3, 4), "numbers of layers", at_least=1)
    seeds: int = setting(3, "runs of each model and depth, with seeds seed, seed + 1, ...", at_least=1)
    learning_rates: tuple[float, ...] = setting(
        (3e-3, 1e-2, 3e-2), "Adam's learning rates, the best of which each model takes", above=0
    )
    steps: int = setting(400, "minibatches", at_least=1)
    measure_every: int = setting(100, "steps between measurements", at_least=1)
    batch: int = setting(12, "windows in a minibatch", at_least=1)
    length: int = setting(20, "tokens in a window", at_least=2)
    clip: float = setting(0.5, "largest norm of the gradient", above=0)
    rank: int = setting(32, "rank of Y and Z in the low-rank form", at_least=1)
    width: int = setting(64, "the decoder's embedding size and hidden width", at_least=2)
    dropout: float = setting(0.1, "the decoder's dropout probability", at_least=0, below=1)
    windows: int = setting(150, "held-out windows measured", at_least=1)

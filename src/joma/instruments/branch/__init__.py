"""One state of a training, continued in several ways (``joma.branch``)."""

from __future__ import annotations

from dataclasses import dataclass

from joma.runs.job import Job, setting

TWIN = "twin"
"""The name of the branch that goes on unchanged."""


@dataclass(frozen=True, kw_only=True)
class BranchSettings(Job):
    """The same state continued in several ways on the same batches, against its twin.

    The settings are those of ``joma.branch``, which has the model and its training step beside them.

    Tables: those of ``joma.BranchResult``.
    """

    title = "one state continued in several ways, against its twin"
    reproduces = "nothing: an instrument"
    subject = "model"

    at: int = setting(0, "steps of training before the branches part", at_least=0)
    steps: int = setting(100, "steps of each branch", at_least=1)
    seeds: int = setting(3, "trainings, each from its own seed", at_least=1)
    orders: int = setting(1, "twins that read the batches in another order, for each seed", at_least=0)
    interventions: tuple[str, ...] = setting((), "name: what the branch does, one for each branch")


@dataclass(frozen=True, kw_only=True)
class DecoderBranchSettings(BranchSettings):
    """``joma branch``: one of joma's own decoders, trained on a text, continued in several ways.

    The statistics of each step are the loss (nats a token) and the mean attention entropy of each layer
    (nats), on the step's batch before its update. Beside the words of ``joma.branch`` there are names of
    sets of parameters (``queries-keys``, ``values``, ``lower-mlp``, ``mlp``, ``norms``, ``embeddings``,
    ``output``, ``layer-0``, ...), ``text CORPUS`` (in the twin's vocabulary) and ``shuffle-text``.

    Tables: those of ``joma.BranchResult``.
    """

    corpus: str = setting("python-reference", "corpus name, text file, or folder of train/valid/test files")
    tokenizer: str = setting(
        "characters", "what a token is: a character or a word", choices=("characters", "words")
    )
    vocabulary_size: int | None = setting(500, "most frequent tokens kept (none: all)", at_least=2)
    layers: int = setting(1, "depth of the decoder", at_least=1)
    width: int = setting(48, "embedding size d, and width of the MLP's hidden layer", at_least=2)
    heads: int = setting(1, "attention heads", at_least=1)
    dropout: float = setting(0.0, "dropout probability", at_least=0, below=1)
    batch: int = setting(16, "windows in a minibatch", at_least=1)
    length: int = setting(35, "tokens in a window", at_least=2)
    learning_rate: float = setting(3e-3, "of Adam", above=0)
    clip: float = setting(0.5, "largest norm of the gradient", above=0)

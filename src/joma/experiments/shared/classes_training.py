"""The training behind JoMA Fig. 2 and 3: linear nodes, softmax attention, one node for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joma.data.frequencies import random_classes, smooth_classes
from joma.dynamics import sgd
from joma.theory.attention import Array, Attention
from joma.theory.block import Block, CrossEntropyGradient, Embeddings

Classes = Literal["smooth", "random"]
INITIAL_SCALE = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassesTraining:
    """Runs side by side (R of them); each observed step is a row (S of them)."""

    frequencies: Array
    """(R, classes, tokens)."""
    steps: Array
    logits: Array
    """``z`` (S, R, M)."""
    squares: Array
    """``sum_k v_k^2`` (S, R, M)."""
    mean_scores: Array
    """``bbar = E[b]`` (S, R, M)."""
    correction: Array
    """(S, R, M): see ``Trajectory``."""
    squared_steps: Array
    """``sum_s sum_k (Delta v_k)^2`` (S, R, M)."""
    node: Array
    """``v_0`` (S, R, M): the weights of the node of class 0."""
    final_weights: Array
    """``v`` (R, K, M) at the end."""


def train_classes(
    classes: Classes,
    *,
    seeds: Sequence[int],
    steps: int,
    rate: float = 0.1,
    attention_rate: float | None = None,
    temperature: float = 0.5,
    nodes: int = 20,
    distinct: int = 10,
    common: int = 10,
) -> ClassesTraining:
    """Train all seeds at once by full-batch gradient descent on cross-entropy, as the paper's code does.

    ``w`` and ``z`` start as Gaussian noise of size 0.01. Float64 (the code: float32). The code's weights
    have nine further rows that no embedding reaches; they never move and are left out.

    Args:
        classes: ``smooth`` or ``random`` class-conditional frequencies.
        seeds: one run each, of data and initial state alike.
        steps: number of gradient steps.
        rate: ``eta_w``, and ``eta_z`` unless ``attention_rate`` is given.
        attention_rate: ``eta_z``; 0 freezes attention.
        temperature: ``T``.
        nodes: K, as many classes as nodes.
        distinct: see ``smooth_classes``.
        common: likewise.
    """
    tokens = distinct + common
    data, weights, logits = [], [], []
    for seed in seeds:
        if classes == "smooth":
            data.append(smooth_classes(nodes, distinct=distinct, common=common, seed=seed))
        else:
            data.append(random_classes(nodes, tokens=tokens, seed=seed))
        rng = np.random.default_rng([seed, 1])
        weights.append(INITIAL_SCALE * rng.normal(size=(nodes, tokens + 1)))
        logits.append(INITIAL_SCALE * rng.normal(size=tokens))
    x = np.stack(data)
    block = Block(Embeddings.orthonormal(tokens), Attention(temperature=temperature))

    def observe(seen: sgd.Snapshot) -> dict[str, Array]:
        return {
            "logits": seen.logits,
            "squares": np.einsum("...km,...km->...m", seen.context_weights, seen.context_weights),
            "correction": seen.correction,
            "squared_steps": seen.squared_weight_steps,
            "node": seen.context_weights[:, 0],
        }

    run = sgd.train(
        block,
        x,
        CrossEntropyGradient(tuple(range(nodes))),
        weights=np.stack(weights),
        logits=np.stack(logits),
        steps=steps,
        weight_rate=rate,
        attention_rate=rate if attention_rate is None else attention_rate,
        record_every=steps,
        observe=observe,
    )
    mean_scores = np.stack([block.attention.scores(x, z).mean(axis=-2) for z in run.observed["logits"]])
    return ClassesTraining(
        frequencies=x,
        steps=run.observed_steps,
        mean_scores=mean_scores,
        final_weights=run.context_weights[-1],
        **run.observed,
    )

"""Theorem 1's constant along training with every optimizer, at every step size."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.data.frequencies import random_classes
from joma.dynamics import sgd
from joma.dynamics.sgd import Descent
from joma.experiments.beyond.optimizers import ATTENTION, OPTIMIZERS, WITH_LAW, Optimizers
from joma.experiments.shared.tables import by_table
from joma.theory.attention import Attention, AttentionKind
from joma.theory.block import Block, CrossEntropyGradient, Embeddings
from joma.theory.invariants import first_integral, logit_coefficient
from joma.theory.optimizers import descent_under_decay, momentum_drift


def run(settings: Optimizers, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every attention, optimizer and step size."""
    cells = [
        (attention, optimizer, halving)
        for attention in ATTENTION
        for optimizer in OPTIMIZERS
        for halving in range(settings.halvings + 1)
    ]
    parts = [
        progress.part(
            f"{attention}_{optimizer}_{halving}".replace(" ", "_"),
            partial(_cell, settings, attention, optimizer, halving),
        )
        for attention, optimizer, halving in progress.track(cells, "optimizers")
    ]
    return by_table(parts)


def _cell(settings: Optimizers, attention: AttentionKind, optimizer: str, halving: int) -> pd.DataFrame:
    kind = Attention(kind=attention)
    run, rate = _train(settings, kind, optimizer, 0.5**halving)
    v, z = run.context_weights, run.logits
    kept = first_integral(kind, z, v)
    side = logit_coefficient(kind) * np.square(v).sum(axis=-2)
    moved = np.linalg.norm(side - side[0], axis=-1)
    metrics = {"constant": kept - kept[0]}
    law = _law(settings, kind, optimizer, run, kept[0], rate)
    if law is not None:
        metrics["law"] = kept - law
    labels = {"attention": attention, "optimizer": optimizer, "rate": rate, "dtype": "float64"}
    shown = np.unique(np.geomspace(1, len(run.times) - 1, 60).astype(int))
    frames = []
    for metric, gap in metrics.items():
        size = np.linalg.norm(gap, axis=-1) / np.where(moved > 0, moved, 1.0)
        for seed in range(settings.seeds):
            if halving == 0:
                course = {"table": "drift", "step": run.times[shown], "value": size[shown, seed]}
                frames.append(pd.DataFrame(course).assign(run=seed, metric=metric, unit="relative"))
            end = {"table": "rates", "step": run.times[-1:], "value": size[-1:, seed]}
            frames.append(pd.DataFrame(end).assign(run=seed, metric=metric, unit="relative"))
    if halving == 0:
        for metric, unit, values in _attention(settings, kind, run):
            for seed in range(settings.seeds):
                course = {"table": "attention", "step": run.times[shown], "value": values[shown, seed]}
                frames.append(pd.DataFrame(course).assign(run=seed, metric=metric, unit=unit))
    return pd.concat(frames).assign(**labels)


def _contexts(settings: Optimizers) -> np.ndarray:
    """The data of every seed: (seeds, classes, tokens)."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    return np.stack([random_classes(settings.classes, tokens=settings.tokens, seed=s) for s in seeds])


def _train(settings: Optimizers, kind: Attention, optimizer: str, scale: float) -> tuple[Descent, float]:
    rules = {
        "sgd": sgd.Optimizer(),
        "momentum": sgd.Optimizer(kind="momentum", momentum=settings.momentum),
        "nesterov": sgd.Optimizer(kind="nesterov", momentum=settings.momentum),
        "weight decay": sgd.Optimizer(weight_decay=settings.weight_decay),
        "adam": sgd.Optimizer(kind="adam"),
        "adamw": sgd.Optimizer(kind="adam", weight_decay=settings.weight_decay, decoupled=True),
    }
    rate = scale * (settings.adam_rate if optimizer.startswith("adam") else settings.rate)
    if optimizer in ("momentum", "nesterov"):
        rate *= 1 - settings.momentum
    rng = np.random.default_rng(settings.seed)
    run = sgd.train(
        Block(Embeddings.orthonormal(settings.tokens), kind),
        _contexts(settings),
        CrossEntropyGradient(tuple(range(settings.classes))),
        weights=0.1 * rng.normal(size=(settings.seeds, settings.classes, settings.tokens + 1)),
        logits=np.full((settings.seeds, settings.tokens), 1.0),
        steps=round(settings.steps / scale),
        weight_rate=rate,
        attention_rate=rate,
        optimizer=rules[optimizer],
    )
    return run, rate


def _law(
    settings: Optimizers, kind: Attention, optimizer: str, run: Descent, initial: np.ndarray, rate: float
) -> np.ndarray | None:
    """Where the constant should be, by the theory's law for that optimizer."""
    if optimizer == "weight decay":
        return descent_under_decay(
            kind,
            run.context_weights,
            run.logits,
            weight_decay=settings.weight_decay,
            attention_decay=settings.weight_decay,
            weight_rate=rate,
            attention_rate=rate,
        )
    if optimizer not in WITH_LAW:
        return None
    beta = settings.momentum if optimizer == "momentum" else 0.0
    drift = momentum_drift(kind, run.context_weights, run.logits, momentum=beta)
    return initial + drift


def _attention(settings: Optimizers, kind: Attention, run: Descent) -> list[tuple[str, str, np.ndarray]]:
    """Entropy of each seed's mean attention, and how unlike the tokens' weights are."""
    x = _contexts(settings)
    scores = np.abs(kind.scores(np.broadcast_to(x, (len(run.times), *x.shape)), run.logits))
    shares = (scores / scores.sum(axis=-1, keepdims=True)).mean(axis=-2)
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(axis=-1)
    sizes = np.linalg.norm(run.context_weights, axis=-2)
    spread = sizes.std(axis=-1) / sizes.mean(axis=-1)
    return [("entropy", "nats", entropy), ("spread", "relative", spread)]


def select(table: pd.DataFrame, attention: str, optimizer: str, metric: str) -> pd.DataFrame:
    """The rows of one attention, optimizer and metric (``constant``, ``law``) in any of the tables."""
    return table[
        (table["attention"] == attention) & (table["optimizer"] == optimizer) & (table["metric"] == metric)
    ]

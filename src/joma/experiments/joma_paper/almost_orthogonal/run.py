"""The drift of each invariant against the dimension, and the coherence that a dimension allows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.arguments import Array
from joma.core.progress import Progress
from joma.dynamics import block_flow
from joma.experiments.joma_paper.almost_orthogonal import ATTENTION, AlmostOrthogonal
from joma.theory import coherence as theory
from joma.theory.activation import activation
from joma.theory.attention import Attention, AttentionKind
from joma.theory.block import Block, Embeddings
from joma.theory.coherence import random_embeddings


def run(settings: AlmostOrthogonal, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every attention and dimension; coherence alone for the larger vocabulary."""
    cells = [(attention, dimension) for attention in ATTENTION for dimension in (0, *settings.dimensions)]
    drift = [
        progress.part(f"{attention}_{dimension}", partial(_cell, settings, attention, dimension))
        for attention, dimension in progress.track(cells, "almost_orthogonal")
    ]
    return {
        "drift": pd.concat(drift, ignore_index=True),
        "coherence": progress.part("coherence", partial(_coherences, settings)),
        "dimensions": _dimensions(settings),
    }


def _cell(settings: AlmostOrthogonal, attention: AttentionKind, dimension: int) -> pd.DataFrame:
    """One attention and dimension; dimension 0 stands for orthonormal embeddings."""
    rows = []
    for run in range(settings.seeds):
        if dimension == 0:
            vectors = np.eye(settings.tokens)
        else:
            vectors = random_embeddings(settings.tokens, dimension, seed=settings.seed + run)
        if dimension > settings.tokens:  # from zero weights only the Gram matrix matters: take its root
            vectors = np.asarray(np.linalg.cholesky(vectors.T @ vectors).T)
        measured = _train(settings, attention, vectors, settings.seed + run)
        if dimension:
            measured["typical"] *= np.sqrt(settings.tokens / dimension)
        for metric, value in measured.items():
            rows.append({"run": run, "metric": metric, "value": value})
    table = pd.DataFrame(rows)
    table["unit"] = np.where(table["metric"].isin(["coherence", "of_bound"]), "", "relative")
    return table.assign(attention=attention, dimension=dimension, dtype="float64")


def _train(
    settings: AlmostOrthogonal, attention: AttentionKind, vectors: Array, seed: int
) -> dict[str, float]:
    rng = np.random.default_rng([seed, 1])
    dimension, tokens = vectors.shape
    kind = Attention(kind=attention)
    course = block_flow.solve(
        Block(Embeddings(vectors, np.zeros(dimension)), kind, activation("tanh")),
        rng.dirichlet(np.ones(tokens), settings.samples),
        2.0 * rng.normal(size=(settings.samples, settings.nodes)),
        weights=np.zeros((settings.nodes, dimension)),
        logits=np.full(tokens, 1.0 if attention == "linear" else 0.0),
        times=np.linspace(0.0, settings.end, 400),
        rtol=1e-10,
    )
    side = theory.attention_side(kind, course.logits, correction=course.correction)
    v, gram = course.context_weights, vectors.T @ vectors
    scale = float(np.square(v[-1]).sum(axis=0).max()) / 2
    drift = theory.drift(side, v)
    first = theory.path_drift(gram, v)
    kept = theory.surviving_invariant(vectors, course.weights, side)

    def size(values: Array) -> float:
        return float(np.sqrt(np.mean(np.square(values)))) / scale

    measured = {
        "coherence": theory.coherence(vectors),
        "drift": size(drift[-1]),
        "first_order_rest": size(drift[-1] - first[-1]),
        # Compared as a mean over tokens too, so that it is no sum of many errors against one.
        "survivor": float(np.abs(kept[-1] - kept[0]).max()) / tokens / scale,
        "typical": size(theory.typical_drift(v[-1], tokens)),
    }
    if dimension >= tokens:  # otherwise the weights do not tell what each token accumulated
        accumulated = course.weights @ np.linalg.pinv(vectors).T
        bound = theory.drift_bound(
            measured["coherence"],
            np.abs(v).max(axis=0),
            np.abs(np.diff(accumulated, axis=0)).sum(axis=0),
        )
        share = np.divide(np.abs(drift).max(axis=0), bound, out=np.zeros_like(bound), where=bound > 0)
        measured["of_bound"] = float(share.max())
    return measured


def _coherences(settings: AlmostOrthogonal) -> pd.DataFrame:
    rows = []
    for dimension in settings.dimensions:
        for run in range(min(settings.seeds, 3)):
            vectors = theory.random_embeddings(settings.vocabulary, dimension, seed=settings.seed + run)
            rows.append(
                {
                    "dimension": dimension,
                    "run": run,
                    "metric": "measured",
                    "value": theory.coherence(vectors),
                }
            )
        for metric, value in (
            ("predicted", theory.random_coherence(settings.vocabulary, dimension)),
            ("welch", theory.welch_bound(settings.vocabulary, dimension)),
        ):
            rows.append({"dimension": dimension, "run": 0, "metric": metric, "value": value})
    return pd.DataFrame(rows).assign(tokens=settings.vocabulary, unit="|cos|", dtype="float64")


def _dimensions(settings: AlmostOrthogonal) -> pd.DataFrame:
    rows = []
    for tokens in (settings.vocabulary, 50_000):
        for epsilon in (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.55):
            for metric, value in (
                ("printed", theory.printed_dimension(tokens, epsilon)),
                ("lemma", theory.lemma_dimension(tokens, epsilon)),
                ("random", theory.random_dimension(tokens, epsilon)),
            ):
                rows.append({"tokens": tokens, "epsilon": epsilon, "metric": metric, "value": float(value)})
    return pd.DataFrame(rows).assign(unit="dimensions", dtype="float64")

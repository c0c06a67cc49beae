"""Received mass of held-out windows at every measured step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from joma.core.progress import Progress
from joma.experiments.beyond.heavy_hitters import HeavyHitters
from joma.experiments.shared.decoder_attention import layer_attentions
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, held_out_text, read_text, train_decoder
from joma.measures.attention.received.hitters import hitter_share
from joma.models.decoder import Decoder
from joma.training.loop import Rows

Array = NDArray[np.float64]


def run(settings: HeavyHitters, progress: Progress) -> dict[str, pd.DataFrame]:
    """Table ``curves``, one part a decoder."""
    read_text(settings)
    progress.note_device("cpu", "float32")
    parts = progress.parts(
        {run_name(*cell): partial(_one_decoder, settings, *cell) for cell in settings.trainings()}
    )
    return {"curves": gather(parts)}


def lift(tokens: NDArray[np.int64], vocabulary: int, reach: int) -> Array:
    """(query, key): how many times more often the key's token stands up to ``reach`` before the query's."""
    counts = np.zeros((vocabulary, vocabulary))
    for back in range(1, reach + 1):
        np.add.at(counts, (tokens[back:], tokens[:-back]), 1.0)
    each = counts.sum(1, keepdims=True) * counts.sum(0, keepdims=True) / counts.sum()
    found: Array = np.divide(counts, each, out=np.zeros_like(counts), where=each > 0)
    return found


def partial_correlation(one: Array, other: Array, taken_out: list[Array]) -> float:
    """Spearman's rank correlation of two lists, a linear function of the other lists' ranks taken out."""
    ranks = [stats.rankdata(values) for values in (one, other)]
    known = np.stack([np.ones(len(one)), *(stats.rankdata(values) for values in taken_out)], 1)
    rest = [r - known @ np.linalg.lstsq(known, r, rcond=None)[0] for r in ranks]
    size = float(np.linalg.norm(rest[0]) * np.linalg.norm(rest[1]))
    return float(rest[0] @ rest[1]) / size if size > 1e-9 else 0.0


def _one_decoder(settings: HeavyHitters, depth: int, seed: int, progress: Progress) -> pd.DataFrame:
    text = read_text(settings)
    windows = held_out_text(settings, text).inputs
    training = np.asarray(text.training)
    table = lift(training, text.vocabulary_size, settings.length)
    counts = np.bincount(training, minlength=text.vocabulary_size).astype(float)
    other = np.random.default_rng([seed, 37]).permutation(text.vocabulary_size)
    ids = windows.numpy()
    place = np.arange(ids.shape[1], dtype=float)
    below = np.tril(np.ones((ids.shape[1],) * 2), -1)
    expected = {
        name: np.stack([(table[np.ix_(order[w], order[w])] * below).sum(0) for w in ids])
        for name, order in (("cooccurrence", np.arange(len(other))), ("shuffled_cooccurrence", other))
    }

    def measure(model: Decoder, step: int) -> Rows:
        rows: Rows = []
        for layer, attention in enumerate(layer_attentions(model, windows)):
            mass = attention.receive().mass.double()
            found = {
                "hitter_share": hitter_share(mass).mean(0).tolist(),
                "first_key_share": (mass[..., 0] / mass.sum(-1)).mean(0).tolist(),
            }
            for name, scores in expected.items():
                found[name] = [
                    float(
                        np.mean(
                            [
                                partial_correlation(received, score, [place, counts[w]])
                                for received, score, w in zip(mass[:, head].numpy(), scores, ids, strict=True)
                            ]
                        )
                    )
                    for head in range(mass.shape[1])
                ]
            for metric, values in found.items():
                rows += [
                    {
                        "step": step,
                        "layer": layer,
                        "head": head,
                        "metric": metric,
                        "value": value,
                        "unit": "1",
                    }
                    for head, value in enumerate(values)
                ]
        return rows

    return train_decoder(settings, depth, seed, progress, text=text, measure=measure)

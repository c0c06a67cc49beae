"""The Y/Z model trained on each source, with real and with shuffled next tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from joma.core.errors import DivergenceError, InputError
from joma.core.progress import Progress
from joma.data.corpora import load_corpus
from joma.data.next_token import NextTokenData
from joma.data.text import tokenize
from joma.dynamics.token_sgd import Batch, sgd_on_counts
from joma.experiments.scan_snap.snap_tfidf import VARIANTS, SnapTfidf


def run(settings: SnapTfidf, progress: Progress) -> dict[str, pd.DataFrame]:
    """Train on each source, with real and with shuffled next tokens."""
    jobs = [("synthetic", settings.seed + k) for k in range(settings.seeds)]
    if settings.corpus:
        jobs += [("text", settings.seed + k) for k in range(settings.seeds)]
    parts = [
        progress.part(f"{source}-{seed}-{variant}", partial(_train, settings, source, seed, variant))
        for source, seed in progress.track(jobs, "snap_tfidf")
        for variant in VARIANTS
    ]
    rows = pd.concat(parts, ignore_index=True)
    tokens = rows[rows["metric"] == "z"].drop(columns="unit").reset_index(drop=True)
    losses = rows[rows["metric"].str.endswith("loss")]
    keep = ["source", "run", "variant", "metric", "value", "unit"]
    return {
        "tokens": tokens,
        "correlations": _correlations(tokens, settings.seed),
        "losses": losses[keep].reset_index(drop=True),
    }


def _train(settings: SnapTfidf, source: str, seed: int, variant: str) -> pd.DataFrame:
    """z, tf and idf of every last token and token after training, and the losses, in one table."""
    shuffled = variant == "shuffled"
    made = _synthetic(settings, seed, shuffled) if source == "synthetic" else _text(settings, seed, shuffled)
    batches, frequency, rarity, outputs = made
    last_tokens, tokens = frequency.shape
    steps = settings.steps if source == "synthetic" else settings.text_steps
    logits, _, loss = sgd_on_counts(
        batches,
        (np.zeros((tokens, outputs)), np.zeros((last_tokens, tokens))),
        eta_y=np.array([settings.eta_y]),
        eta_z=np.array([settings.eta_z]),
        record=(steps,),
    )
    if not (np.isfinite(loss).all() and np.isfinite(logits).all()):
        raise DivergenceError(
            f"snap_tfidf: training on {source} left the finite numbers with eta_y = {settings.eta_y:g}, "
            f"eta_z = {settings.eta_z:g}; lower them."
        )
    last, token = np.nonzero(frequency)
    labels = {"source": source, "run": seed, "variant": variant}
    z = pd.DataFrame(
        {
            **labels,
            "last_token": last,
            "token": token,
            "tf": frequency[last, token],
            "idf": rarity[token],
            "metric": "z",
            "value": logits[-1, 0, last, token].astype(np.float64),
            "unit": "",
        }
    )
    ends = {"first loss": loss[:20].mean(), "last loss": loss[-20:].mean()}
    losses = pd.DataFrame(
        [{**labels, "metric": name, "value": float(value), "unit": "nats"} for name, value in ends.items()]
    )
    return pd.concat([z, losses], ignore_index=True)


def _synthetic(
    settings: SnapTfidf, seed: int, shuffled: bool
) -> tuple[Iterator[Batch], NDArray[np.float64], NDArray[np.float64], int]:
    """Batches, tf (L, C), idf (C,), and the number of logits, of one synthetic data set."""
    random = np.random.default_rng([seed, 0])
    weights = np.zeros((settings.classes, settings.tokens))
    sizes = np.unique(np.geomspace(1, settings.classes, 6).astype(int))
    for token in range(settings.tokens):
        # the first tokens are distinct ones, so that every class has a token at least
        size = 1 if token < settings.classes else int(random.choice(sizes))
        where = [token] if token < settings.classes else random.choice(settings.classes, size, replace=False)
        weights[where, token] = np.exp(random.uniform(np.log(0.1), 0.0, size))
    weights[:, 0] += 0.5  # one token that all classes share, however few tokens there are
    data = NextTokenData(weights / weights.sum(axis=1, keepdims=True), np.arange(settings.classes))

    def batches() -> Iterator[Batch]:
        draw = np.random.default_rng([seed, 1])
        for _ in range(settings.steps):
            n, counts = data.sample_counts(settings.batch, settings.length, draw)
            yield draw.permutation(n) if shuffled else n, data.last_of_next[n], counts

    rarity = np.log(settings.classes / (data.conditional > 0).sum(axis=0))
    return batches(), data.conditional, rarity, data.logits


def _text(
    settings: SnapTfidf, seed: int, shuffled: bool
) -> tuple[Iterator[Batch], NDArray[np.float64], NDArray[np.float64], int]:
    """Batches, tf (L, V), idf (V,), and the number of logits, of windows of the corpus."""
    words = tokenize(load_corpus(settings.corpus), vocabulary_size=settings.vocabulary)
    text, size = words.training, words.vocabulary_size
    occurrences = np.bincount(text, minlength=size)
    occurrences[0] = 0  # unknown words are no token
    frequent = np.argsort(-occurrences, kind="stable")[: settings.last_tokens]
    number = np.full(size, -1)
    number[frequent] = np.arange(frequent.size)
    ends = np.arange(settings.window, text.size - 1)
    ends = ends[(number[text[ends]] >= 0) & (text[ends + 1] > 0)]
    counts = np.zeros((ends.size, size), dtype=np.float32)
    for back in range(1, settings.window + 1):
        counts[np.arange(ends.size), text[ends - back]] += 1
    counts[:, 0] = 0
    full = counts.any(axis=1)
    ends, counts = ends[full], counts[full]
    if ends.size < settings.batch:
        raise InputError(
            f"snap_tfidf: corpus {settings.corpus!r} has only {ends.size} windows of "
            f"{settings.window} words; give a longer text or more last_tokens."
        )
    last, following = number[text[ends]], text[ends + 1]
    draw = np.random.default_rng([seed, 2])
    if shuffled:
        following = draw.permutation(following)

    def batches() -> Iterator[Batch]:
        for _ in range(settings.text_steps):
            chosen = draw.integers(0, ends.size, settings.batch)
            yield following[chosen], last[chosen], counts[chosen]

    pairs = np.stack([counts[last == m].sum(axis=0) for m in range(frequent.size)]).astype(np.float64)
    frequency = np.where(
        pairs >= settings.least_count, pairs / np.maximum(pairs.sum(1, keepdims=True), 1), 0.0
    )
    rarity = np.log(ends.size / np.maximum((counts > 0).sum(axis=0), 1))
    return batches(), frequency, rarity, size


def _correlations(tokens: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Spearman's correlation of z with each reference, for each last token with at least five tokens."""
    random = np.random.default_rng([seed, 3])
    rows = []
    for (source, run, variant, last), part in tokens.groupby(["source", "run", "variant", "last_token"]):
        if len(part) < 5:
            continue
        tfidf = (part["tf"] * part["idf"]).to_numpy()
        references = {
            "tf-idf": tfidf,
            "tf": part["tf"].to_numpy(),
            "idf": part["idf"].to_numpy(),
            "chance": random.permutation(tfidf),
        }
        z = rankdata(part["value"])
        for name, reference in references.items():
            other = rankdata(reference)
            constant = np.ptp(z) == 0 or np.ptp(other) == 0  # no order: it correlates with nothing
            rows.append(
                {
                    "source": source,
                    "run": run,
                    "variant": variant,
                    "last_token": last,
                    "reference": name,
                    "metric": "rank correlation",
                    "value": 0.0 if constant else float(np.corrcoef(z, other)[0, 1]),
                    "unit": "",
                    "tokens": len(part),
                }
            )
    return pd.DataFrame(rows)

"""Forecasts by every closure, and the training that they foretell."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.data.frequencies import random_classes, smooth_classes
from joma.dynamics import reduced_flow
from joma.dynamics.reduced_flow import Forecast as Cast
from joma.dynamics.reduced_flow import SoftmaxClosure
from joma.experiments.beyond.forecast import CLOSURES, DATA, EXACT, OTHER, Forecast
from joma.experiments.shared.tables import by_table
from joma.theory.attention import Attention, AttentionKind
from joma.theory.block import Block, CrossEntropyGradient, Embeddings

UNITS = {"logit_error": "relative", "logit_correlation": "", "attention_gap": "TV", "attention_moved": "TV"}


def run(settings: Forecast, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every data set, kind of attention and closure."""
    kinds: tuple[AttentionKind, ...] = (*EXACT, "softmax")
    cells = [(data, attention) for data in DATA for attention in kinds]
    return by_table(
        progress.part(f"{data}_{attention}", partial(_cell, settings, data, attention))
        for data, attention in progress.track(cells, "forecast")
    )


def _cell(settings: Forecast, data: str, attention: AttentionKind) -> pd.DataFrame:
    parts = []
    for run in range(settings.seeds):
        for closure in CLOSURES if attention == "softmax" else (None,):
            cast = _forecast(settings, data, attention, closure, settings.seed + run)
            labels = {"data": data, "attention": attention, "closure": closure or "exact", "run": run}
            parts.append(_curves(cast, cast).assign(**labels))
            best = closure in (None, "moving")
            if run == 0:
                parts.append(_courses(cast, best).assign(**labels))
            other = _forecast(settings, data, attention, closure, settings.seed + 1000 + run)
            parts.append(_curves(cast, other).assign(**{**labels, "closure": f"{labels['closure']}{OTHER}"}))
    return pd.concat(parts, ignore_index=True).assign(dtype="float64")


def _forecast(
    settings: Forecast, data: str, attention: AttentionKind, closure: SoftmaxClosure | None, seed: int
) -> Cast:
    common = settings.tokens // 2
    if data == "smooth":
        x = smooth_classes(settings.classes, distinct=settings.tokens - common, common=common, seed=seed)
    else:
        x = random_classes(settings.classes, tokens=settings.tokens, seed=seed)
    end = settings.exp_end if attention == "exp" else settings.end
    return reduced_flow.forecast(
        Block(
            Embeddings.orthonormal(settings.tokens),
            Attention(kind=attention, temperature=settings.temperature),
        ),
        x,
        CrossEntropyGradient(tuple(range(settings.classes))),
        weights=np.zeros((settings.classes, settings.tokens + 1)),
        # Linear attention from zero logits would never move.
        logits=np.full(settings.tokens, settings.temperature if attention == "linear" else 0.0),
        times=np.linspace(0.0, end, settings.moments),
        softmax=closure or "moving",
        rtol=1e-10,
    )


def _curves(cast: Cast, other: Cast) -> pd.DataFrame:
    """The four metrics of what ``other`` predicts of what ``cast`` trained."""
    moments = slice(min(len(cast.times), len(other.predicted.logits)))
    times = cast.times[moments]
    judged = dataclasses.replace(
        cast,
        predicted=dataclasses.replace(cast.trained, logits=other.predicted.logits[moments], times=times),
        trained=dataclasses.replace(cast.trained, logits=cast.trained.logits[moments], times=times),
        predicted_shares=other.predicted_shares[moments],
        trained_shares=cast.trained_shares[moments],
    )
    return pd.concat(
        pd.DataFrame({"step": judged.times, "metric": metric, "value": getattr(judged, metric), "unit": unit})
        for metric, unit in UNITS.items()
    ).assign(table="curves")


def _courses(cast: Cast, with_trained: bool) -> pd.DataFrame:
    shares = {"forecast": cast.predicted_shares} | ({"trained": cast.trained_shares} if with_trained else {})
    return pd.concat(
        pd.DataFrame({"step": cast.times, "token": token, "metric": name, "value": attention})
        for name, share in shares.items()
        for token, attention in enumerate(share.mean(axis=-2).T)
    ).assign(table="courses", unit="share of the attention")

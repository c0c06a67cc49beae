"""All seeds at once, in the figure's sequences and in infinitely long ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.data.next_token import graded_tokens
from joma.dynamics.token_sgd import token_sgd
from joma.experiments.scan_snap.snap_fig4 import DATA, NULL, SnapFig4
from joma.experiments.scan_snap.snap_fig6.authors import authors_classes


def run(settings: SnapFig4, progress: Progress) -> dict[str, pd.DataFrame]:
    """All seeds at once, every second step recorded."""
    parts = [
        progress.part(
            f"{'infinite' if length is None else 'finite'}-{data}", partial(_tokens, settings, length, data)
        )
        for length in (settings.length, None)
        for data in DATA
    ]
    return {"tokens": pd.concat(parts, ignore_index=True)}


def _tokens(settings: SnapFig4, length: int | None, source: str) -> pd.DataFrame:
    data = graded_tokens(
        last_tokens=settings.last_tokens,
        next_per_last=settings.next_per_last,
        common=settings.common,
        distinct=settings.distinct,
    )
    seeds = [settings.seed + 1 + k for k in range(settings.seeds)]
    runs = token_sgd(
        data.uninformative() if source == NULL else data,
        eta_y=settings.eta_y,
        eta_z=settings.eta_z,
        seeds=seeds,
        steps=settings.steps,
        batch=settings.batch,
        length=length,
        momentum=settings.momentum,
        start="zero",
        classes=np.stack([authors_classes(data, seed, settings.steps, settings.batch) for seed in seeds]),
        record=range(0, settings.steps + 1, 2),
        dtype="float64",
    )
    classes, tokens = np.nonzero(data.conditional)
    kinds = np.where(data.common[tokens], "common", "distinct")
    mass = np.stack([runs.mass(k)[:, 0] for k in range(runs.steps.size)])[:, :, classes, tokens]
    logits = runs.logits[:, :, 0][:, :, data.last_of_next[classes], tokens]
    step, run, entry = (axis.ravel() for axis in np.indices(mass.shape))
    frame = pd.DataFrame(
        {
            "run": runs.seeds[run],
            "data": source,
            "length": float("inf") if length is None else float(length),
            "step": runs.steps[step],
            "next_token": classes[entry],
            "token": tokens[entry],
            "kind": kinds[entry],
            "probability": data.conditional[classes, tokens][entry],
        }
    )
    return pd.concat(
        [
            frame.assign(metric="attention mass", value=mass.ravel(), unit=""),
            frame.assign(metric="attention logit", value=logits.ravel(), unit="nats"),
        ],
        ignore_index=True,
    ).assign(dtype="float64")

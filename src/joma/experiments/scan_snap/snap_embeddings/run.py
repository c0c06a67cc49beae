"""Every parametrisation trained on the same data, and what has changed of Z."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import torch

from joma.core.errors import DivergenceError
from joma.core.progress import Progress
from joma.data.next_token import NextTokenData, graded_tokens
from joma.experiments.scan_snap.snap_embeddings import EMBEDDED, FREE, NULL, ONE_MATRIX, SnapEmbeddings
from joma.experiments.shared.tables import Row, Rows
from joma.models.one_layer import EmbeddedDecoder, FreePairs, OneLayer, Population
from joma.training.loop import reproducible


def run(settings: SnapEmbeddings, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every model and seed; the free model starts from zero and has one run."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    cells = [(FREE, "real", settings.seed)]
    cells += [(model, "real", seed) for model in EMBEDDED for seed in seeds]
    cells += [(model, NULL, seed) for model in EMBEDDED if model != ONE_MATRIX for seed in seeds]
    parts = []
    for model, source, seed in progress.track(cells, "snap_embeddings"):
        name = f"{model}_{seed}_{source}".replace(" ", "_").replace(",", "")
        parts.append(progress.part(name, partial(_train_one, settings, model, source, seed)))
    everything = pd.concat(parts, ignore_index=True)
    is_token = everything["token"].notna()
    of_token = ["token", "next_token", "kind", "probability"]
    tokens = everything[is_token].reset_index(drop=True)
    return {
        "course": everything[~is_token].drop(columns=of_token).reset_index(drop=True),
        "tokens": tokens.astype({"token": int, "next_token": int}),
    }


def _train_one(settings: SnapEmbeddings, model_name: str, source: str, seed: int) -> pd.DataFrame:
    data = graded_tokens(
        last_tokens=settings.last_tokens,
        next_per_last=settings.next_per_last,
        common=1,
        distinct=settings.distinct,
        common_weight=settings.common_weight,
    )
    population = Population(data.uninformative() if source == NULL else data)
    steps = round(settings.end / settings.rate)
    recorded = set(np.linspace(0, steps, settings.moments).round().astype(int).tolist())
    ids: Row = {
        "run": f"{model_name}, {source}, seed {seed}",
        "model": model_name,
        "seed": seed,
        "data": source,
        "dtype": "float64",
    }
    rows: Rows = []
    with reproducible(seed):
        model: OneLayer
        if model_name == FREE:
            model = FreePairs(population.tokens)
        else:
            factored, learns, wide = EMBEDDED[model_name]
            width = population.tokens if wide else settings.width
            model = EmbeddedDecoder(
                population.tokens, width, factored=factored, train_embeddings=learns, scale=settings.scale
            )
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(learned, lr=settings.rate)
        start = model.attention_matrix().detach().clone()
        for step in range(steps + 1):
            loss = population.loss(model)
            if not bool(torch.isfinite(loss)):
                raise DivergenceError(
                    f"snap_embeddings: the loss of '{model_name}' became {loss.item()} at step {step} (rate "
                    f"{settings.rate:g}); lower the rate."
                )
            if step in recorded:
                time = step * settings.rate
                with torch.no_grad():
                    change = model.attention_matrix() - start
                    measured = _measures(population, model, change) | {"loss": float(loss)}
                rows += [
                    ids | {"time": time, "metric": name, "value": value, "unit": "nats" * (name == "loss")}
                    for name, value in measured.items()
                ]
            if step < steps:
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    rows += [ids | {"time": settings.end} | row for row in _token_rows(data, change)]
    return pd.DataFrame(rows)


def _measures(population: Population, model: OneLayer, change: torch.Tensor) -> dict[str, float]:
    """Mass on the common token (number 0), and where Z has changed: shares of its squared change."""
    mass = model.mass(population.frequencies, population.last)
    lasts = torch.tensor(sorted(set(population.last.tolist())))
    own = change[lasts]
    seen = (population.last[:, None] == lasts[None, :]).double().T @ (population.frequencies > 0).double()
    never_last = torch.ones(len(change), dtype=torch.bool)
    never_last[lasts] = False
    in_rows, elsewhere = float((own**2).sum()), float((change[never_last] ** 2).sum())
    total = in_rows + elsewhere
    unseen = float((own[seen == 0] ** 2).sum())
    return {
        "common mass": float(population.prior @ mass[:, 0]),
        # Before anything has changed there is nothing to share.
        "other rows": elsewhere / total if total > 0 else 0.0,
        "unseen tokens": unseen / in_rows if in_rows > 0 else 0.0,
    }


def _token_rows(data: NextTokenData, change: torch.Tensor) -> Rows:
    """The change of z_ml for every class and token that occurs in it."""
    rows: Rows = []
    for n, token in np.argwhere(data.conditional > 0).tolist():
        last = data.contextual_tokens + int(data.last_of_next[n])
        rows.append(
            {
                "next_token": n,
                "token": token,
                "kind": "common" if data.common[token] else "distinct",
                "probability": float(data.conditional[n, token]),
                "metric": "logit change",
                "value": float(change[last, token]),
                "unit": "nats",
            }
        )
    return rows

"""Losses after a context of which the cache keeps a few positions, for every set and every policy."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from joma.core.progress import Progress
from joma.experiments.beyond.eviction import Eviction
from joma.experiments.beyond.eviction.policies import (
    ASKS,
    BEYOND,
    BY_ENTROPY,
    CHANGE,
    OWN,
    PLAIN,
    RANDOM,
    RECENT,
    SINK,
    Scores,
    keep_by_head,
    keep_positions,
    score,
)
from joma.experiments.shared.decoder_attention import layer_attentions, losses_with_masks
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import read_text, train_decoder
from joma.experiments.shared.tables import Rows, by_table
from joma.models.decoder import Decoder

BEST, EVERYTHING = "best", "everything kept"


def run(settings: Eviction, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``regrets``, ``correlations`` and ``policies``, one part a decoder."""
    read_text(settings)
    progress.note_device("cpu", "float32")
    parts = progress.parts(
        {run_name(*cell): partial(_one_decoder, settings, *cell) for cell in settings.trainings()}
    )
    tables = by_table(parts.values(), counted=("budget", "window", "text"))
    return tables | {"policies": _with_intervals(tables["regrets"])}


def _one_decoder(settings: Eviction, depth: int, seed: int, progress: Progress) -> pd.DataFrame:
    text = read_text(settings)
    held_out = torch.as_tensor(np.asarray(text.validation))
    size = settings.context + settings.continuation + 1
    starts = np.random.default_rng([seed, 37]).choice(len(held_out) - size, settings.texts, replace=False)

    def measure(model: Decoder, step: int) -> Rows:
        rows: Rows = []
        for number, start in enumerate(starts):
            tokens = held_out[start : start + size].long()
            found = _one_text(settings, model, tokens, np.random.default_rng([seed, number]))
            rows += [{**row, "step": step, "text": number} for row in found]
        return rows

    found = train_decoder(settings, depth, seed, progress, text=text, measure=measure)
    return found.assign(network=np.where(found["step"] == 0, "untrained", "trained"))


def _one_text(settings: Eviction, model: Decoder, tokens: Tensor, rng: np.random.Generator) -> Rows:
    layers = layer_attentions(model, tokens[None, : settings.context])
    scores = score(layers, settings.window)
    rows = _correlations(scores)
    depth = len(layers)

    def losses(sets: Tensor) -> Tensor:
        mask = seen_with(sets[:, None], len(tokens) - 1)
        return losses_with_masks(model, tokens, [mask] * depth, settings.context)

    full = float(losses(torch.ones(1, settings.context, dtype=torch.bool))[0])
    for budget in settings.budgets:
        every = all_sets(settings.context, budget)
        loss = losses(every)
        place = {tuple(one): n for n, one in enumerate(every.tolist())}
        found = {
            policy: float(loss[place[tuple(keep_positions(scores, policy, budget).tolist())]])
            for policy in (*scores.common, SINK)
        }
        found[RANDOM] = float(
            loss[torch.from_numpy(rng.integers(0, len(every), settings.random_sets))].mean()
        )
        best = float(loss.min())
        for policy in (OWN, BY_ENTROPY):
            masks = [seen_with(one[None], len(tokens) - 1) for one in keep_by_head(scores, policy, budget)]
            found[policy] = float(losses_with_masks(model, tokens, masks, settings.context)[0])
        found |= {BEST: best, EVERYTHING: full}
        for policy, value in found.items():
            rows.append(
                {
                    "table": "regrets",
                    "budget": budget,
                    "policy": policy,
                    "asks": ASKS.get(policy, "the continuation"),
                    "window": settings.window if ASKS.get(policy) == "window" else settings.context,
                    "set": "own" if policy in (OWN, BY_ENTROPY) else "common",
                    "loss": value,
                    "regret": value - best,
                    "unit": "nats",
                }
            )
    return rows


def all_sets(context: int, budget: int) -> Tensor:
    """(sets, context) bool: all sets of so many positions."""
    chosen = torch.tensor(list(combinations(range(context), budget)))
    return torch.zeros(len(chosen), context, dtype=torch.bool).scatter_(1, chosen, True)


def seen_with(sets: Tensor, length: int) -> Tensor:
    """(masks, heads or 1, context) bool -> (masks, heads or 1, length, length): what each position sees.

    The context was read before anything was evicted: there it is causal.
    """
    context = sets.shape[-1]
    seen = torch.ones(length, length, dtype=torch.bool).tril().expand(*sets.shape[:2], -1, -1).clone()
    seen[:, :, context:, :context] &= sets[:, :, None]
    return seen


def _correlations(scores: Scores) -> Rows:
    """Spearman's rank correlation of every score with the exact change, over the positions of a text."""
    exact = stats.rankdata(scores.common[CHANGE].numpy())
    place = np.arange(len(exact), dtype=float)
    found: Rows = []
    for policy, values in scores.common.items():
        if policy in (CHANGE, RECENT):
            continue
        ranks = stats.rankdata(values.numpy())
        plain, beyond = (
            _correlation(ranks, exact),
            _correlation(_without(ranks, place), _without(exact, place)),
        )
        found += [
            {"table": "correlations", "policy": policy, "metric": metric, "value": value}
            for metric, value in ((PLAIN, plain), (BEYOND, beyond))
        ]
    return found


def _without(ranks: NDArray[np.float64], place: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a straight line over the position leaves of the ranks."""
    slope, start = np.polyfit(place, ranks, 1)
    return ranks - (float(slope) * place + float(start))


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0


def _with_intervals(regrets: pd.DataFrame) -> pd.DataFrame:
    """Mean regret of each policy with a 95 % interval over texts of all seeds, by the bootstrap, ranked."""
    rows = []
    keys = ["network", "budget", "policy", "asks", "window", "set"]
    for key, part in regrets[regrets["policy"] != BEST].groupby(keys, sort=False):
        values = part["regret"].to_numpy()
        draws = np.random.default_rng(0).choice(values, (2000, len(values))).mean(1)
        low, high = np.quantile(draws, (0.025, 0.975))
        rows.append({**dict(zip(keys, key, strict=True)), "regret": values.mean(), "low": low, "high": high})
    table = pd.DataFrame(rows).assign(unit="nats", texts=regrets.groupby(["seed", "text"]).ngroups)
    return table.sort_values(["network", "budget", "regret"], ignore_index=True)

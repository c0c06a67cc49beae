"""The drift of each constant, model by model, and what the embeddings learn."""

from __future__ import annotations

from functools import partial

import pandas as pd
import torch

from joma.core.progress import Progress
from joma.experiments.beyond.embeddings import ATTENTION, LAWS, MODELS, Embeddings
from joma.experiments.beyond.embeddings.problem import Problem


def run(settings: Embeddings, progress: Progress) -> dict[str, pd.DataFrame]:
    """Every attention, model and seed; the two-matrix model once more from half the scale."""
    cells = [(attention, model, settings.scale) for attention in ATTENTION for model in MODELS]
    cells += [("exp", "two matrices", settings.scale / 2)]
    parts = []
    for attention, model, scale in progress.track(cells, "embeddings"):
        for seed in range(settings.seeds):
            name = f"{attention}_{model}_{scale:g}_{seed}".replace(" ", "_").replace(",", "")
            parts.append(progress.part(name, partial(_cell, settings, attention, model, scale, seed)))
    everything = pd.concat(parts, ignore_index=True)
    is_drift = everything["metric"].isin(list(LAWS))
    return {
        "drift": everything[is_drift].reset_index(drop=True),
        "course": everything[~is_drift].reset_index(drop=True),
    }


def _cell(settings: Embeddings, attention: str, model: str, scale: float, seed: int) -> pd.DataFrame:
    logits, learns = MODELS[model]
    problem = Problem(settings, attention, logits, scale, settings.seed + seed)
    first = {name: _terms(terms) for name, terms in problem.quantities(problem.start, learns).items()}
    learned = [name for name in problem.start if learns or name not in ("embeddings", "query")]
    rows = []
    for time, state in problem.flow(learned, settings.end, settings.moments):
        for name, terms in problem.quantities(state, learns).items():
            constant, sides = _terms(terms)
            moved = float((sides - first[name][1]).norm())
            gap = float((constant - first[name][0]).norm())
            rows.append((time, name, gap / moved if moved > 0 else 0.0, "relative"))
        rows += [(time, *row) for row in problem.measures(state)]
    table = pd.DataFrame(rows, columns=["step", "metric", "value", "unit"])
    return table.assign(attention=attention, model=model, scale=scale, run=seed, dtype="float64")


def _terms(terms: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A constant, and all of its terms side by side (to see how far they moved)."""
    constant = terms[0].clone()
    for term in terms[1:]:
        constant = constant - term
    return constant, torch.stack(terms)

"""Every rate on the first seed, then the best rate of each model and depth on the others."""

from __future__ import annotations

import itertools
from functools import partial

import pandas as pd

from joma.core.errors import DivergenceError
from joma.core.progress import Progress
from joma.data.text import Batches, TokenText, validation_windows
from joma.experiments.scan_snap.snap_yz_layers import SnapYzLayers
from joma.experiments.scan_snap.snap_yz_layers.ngram_losses import bigram_loss, unigram_loss
from joma.experiments.shared.decoders import gather, tokens_of
from joma.models.decoder import Decoder
from joma.models.language_model import LanguageModel
from joma.models.yz import YZ
from joma.training.evaluation import HeldOutText
from joma.training.loop import Recipe, reproducible, train


def run(settings: SnapYzLayers, progress: Progress) -> dict[str, pd.DataFrame]:
    """First every rate on the first seed; then the best rate of each model and depth on the others."""
    text = _read_text(settings)
    # A text too short for a minibatch or a held-out window is an error before any process is started.
    Batches(text.training, settings.batch, settings.length, "random", settings.seed)
    validation_windows(text.validation, length=settings.length, most=settings.windows)
    # The deepest first: they take longest, and the others fill the gaps.
    deepest_first = itertools.product(sorted(settings.depths, reverse=True), settings.models)
    cells = [
        (model, depth, rate, settings.seed)
        for depth, model in deepest_first
        for rate in settings.learning_rates
    ]
    tables = _compute(settings, cells, progress)
    chosen = _losses(tables).sort_values("loss", kind="stable").groupby(["model", "depth"], sort=True).head(1)
    cells = [
        (model, depth, rate, seed)
        for model, depth, rate in chosen[["model", "depth", "learning_rate"]].itertuples(index=False)
        for seed in range(settings.seed + 1, settings.seed + settings.seeds)
    ]
    if cells:
        tables = pd.concat([tables, _compute(settings, cells, progress)], ignore_index=True)
    losses = _losses(tables).merge(
        chosen[["model", "depth", "learning_rate"]].assign(chosen=True),
        on=["model", "depth", "learning_rate"],
        how="left",
    )
    losses["chosen"] = losses["chosen"].eq(True)
    baselines = pd.DataFrame(
        {
            "model": ["unigram", "bigram"],
            "metric": "validation_loss",
            "value": [unigram_loss(text), bigram_loss(text)],
            "unit": "nats",
        }
    )
    return {"curves": tables, "losses": losses, "baselines": baselines}


def _read_text(settings: SnapYzLayers) -> TokenText:
    return tokens_of(settings.corpus, "words", settings.vocabulary_size)


def _run_name(model: str, depth: int, rate: float, seed: int) -> str:
    return f"{model.replace(', ', '-').replace(' ', '-')}-{depth}-rate-{rate:g}-seed-{seed}"


def _compute(
    settings: SnapYzLayers, cells: list[tuple[str, int, float, int]], progress: Progress
) -> pd.DataFrame:
    """The rows of the runs of these models, depths, rates and seeds."""
    return gather(progress.parts({_run_name(*cell): partial(_train_one, settings, *cell) for cell in cells}))


def _train_one(
    settings: SnapYzLayers, model_name: str, depth: int, rate: float, seed: int, progress: Progress
) -> pd.DataFrame:
    text = _read_text(settings)
    name = _run_name(model_name, depth, rate, seed)
    with reproducible(seed):
        model: LanguageModel
        if model_name == "decoder":
            model = Decoder(
                text.vocabulary_size,
                layers=depth,
                width=settings.width,
                hidden=settings.width,
                dropout=settings.dropout,
                longest=settings.length,
            )
        else:
            model = YZ(
                text.vocabulary_size,
                layers=depth,
                rank=settings.rank if model_name == "YZ, low rank" else None,
                residual=model_name != "YZ, no residual",
                start="identity" if model_name == "YZ, identity start" else "uniform",
                longest=settings.length,
            )
        try:
            rows = train(
                model,
                text,
                Recipe(
                    steps=settings.steps,
                    learning_rate=rate,
                    clip=settings.clip,
                    batch=settings.batch,
                    length=settings.length,
                    seed=seed,
                ),
                measure=HeldOutText(text, length=settings.length, most_windows=settings.windows).measure,
                measure_at=[*range(0, settings.steps, settings.measure_every), settings.steps],
                progress=progress,
                label=f"snap_yz_layers: {name}",
                checkpoints=progress.checkpoint_folder(name),
            )
        except DivergenceError as error:
            # A rate too high for a model is an answer; what was measured before says how bad it was.
            if error.table is None or error.table.empty:
                raise
            rows = error.table
    rows = rows[rows["metric"] != "stable_rank"].reset_index(drop=True)
    return rows.assign(
        run=name, model=model_name, depth=depth, learning_rate=rate, seed=seed, dtype="float32"
    )


def _losses(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run: its lowest held-out loss, when, and the last one."""
    held_out = curves[curves["metric"] == "validation_loss"]
    by_run = held_out.groupby(["run", "model", "depth", "learning_rate", "seed"], sort=True)
    best = held_out.loc[by_run["value"].idxmin()].set_index("run")
    table = by_run["value"].agg(loss="min", last="last").reset_index()
    return table.assign(step=table["run"].map(best["step"]), unit="nats")

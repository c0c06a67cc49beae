"""Scan&Snap's further experiments: the YZ model in several layers on real text, beside the ordinary one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.errors import DivergenceError, InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

# What is trained: the settings of the YZ model, or None for the ordinary decoder.
MODELS: dict[str, dict[str, Any] | None] = {
    "YZ": {},
    "YZ, no residual": {"residual": False},
    "YZ, identity start": {"start": "identity"},
    "YZ, low rank": {},
    "decoder": None,
}


@dataclass(frozen=True, kw_only=True)
class SnapYzLayers(Experiment):
    """Held-out loss against depth: the YZ model, without its residual, in low rank, and the decoder.

    The slides give one page without numbers: the YZ parametrisation works on WikiText-2, even in several
    layers; performance drops beyond three; perplexity is higher than the ordinary transformer's; the
    residual connection is important. The model is theirs (one-hot states, own token included, 2-norm,
    ReLU between layers, weights uniform in +-1/sqrt(M), Adam, clipping at 0.5). Their default start from
    zero is left out: with more than one layer it has no gradient.

    Beside it: Y and Z as products of two factors of rank ``rank`` (what separate embeddings for each role
    would be); the ordinary decoder (embeddings, positions, MLP); and, with setting ``models`` (and in
    ``paper``), a start in which lower layers pass on what they mix, which asks whether depth hurts because
    of the start. The best rate depends on model and depth, so each takes, on its first seed, the best of
    ``learning_rates``; further seeds use that one. A run's loss is its lowest held-out loss over training
    (small texts are overfitted). Depth is not called harmful while the deep models' loss still falls.

    ``quick`` must keep Y and Z of M x M small: 256 words of a small text. ``paper`` leaves the free
    matrices to 4,000 words (the low-rank form alone fits the full vocabulary).

    Tables: ``curves`` (loss and attention entropy along training), ``losses`` (one row per run),
    ``baselines`` (unigram and bigram models).
    """

    title = "the YZ model in several layers on real text: depth, residual, rank, and the ordinary decoder"
    reproduces = "Scan&Snap slides, more ongoing experiments"
    cost: ClassVar[Mapping[str, str]] = {"quick": "2 min", "paper": "a day"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": 4000,
            "models": tuple(MODELS),
            "depths": (1, 2, 3, 4, 6),
            "seeds": 3,
            "steps": 10_000,
            "measure_every": 500,
            "batch": 20,
            "length": 35,
            "rank": 200,
            "width": 200,
            "learning_rates": (1e-4, 1e-3, 1e-2),
            "dropout": 0.2,
        },
    }

    corpus: str = setting("python-reference", "corpus name, text file, or folder of train/valid/test files")
    vocabulary_size: int | None = setting(
        256, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    models: tuple[str, ...] = setting(
        ("YZ", "YZ, no residual", "YZ, low rank", "decoder"), "models that are trained", choices=tuple(MODELS)
    )
    depths: tuple[int, ...] = setting((1, 2, 3, 4), "numbers of layers", at_least=1)
    seeds: int = setting(2, "runs of each model and depth, with seeds seed, seed + 1, ...", at_least=1)
    learning_rates: tuple[float, ...] = setting(
        (3e-3, 1e-2, 3e-2), "Adam's learning rates, the best of which each model takes", above=0
    )
    steps: int = setting(400, "minibatches", at_least=1)
    measure_every: int = setting(100, "steps between measurements", at_least=1)
    batch: int = setting(12, "windows in a minibatch", at_least=1)
    length: int = setting(20, "tokens in a window", at_least=2)
    clip: float = setting(0.5, "largest norm of the gradient", above=0)
    rank: int = setting(32, "rank of Y and Z in the low-rank form", at_least=1)
    width: int = setting(64, "the decoder's embedding size and hidden width", at_least=2)
    dropout: float = setting(0.1, "the decoder's dropout probability", at_least=0, below=1)
    windows: int = setting(150, "held-out windows measured", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("models", "depths", "learning_rates"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise InputError(f"snap_yz_layers: setting {name} = {values} must hold different values.")

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """First every rate on the first seed; then the best rate of each model and depth on the others."""
        import pandas as pd

        from joma.experiments.snap_yz_layers.ngram_losses import bigram_loss, unigram_loss

        text = _read_text(self)
        first = {
            (model, depth, rate, self.seed): _bind(self, model, depth, rate, self.seed)
            # The deepest first: they take longest, and the others fill the gaps.
            for depth in sorted(self.depths, reverse=True)
            for model in self.models
            for rate in self.learning_rates
        }
        tables = _compute(progress, first)
        chosen = _losses(pd.concat(tables, ignore_index=True)).sort_values("loss", kind="stable")
        chosen = chosen.groupby(["model", "depth"], sort=True).head(1)
        further = {
            (model, depth, rate, seed): _bind(self, model, depth, rate, seed)
            for model, depth, rate in chosen[["model", "depth", "learning_rate"]].itertuples(index=False)
            for seed in range(self.seed + 1, self.seed + self.seeds)
        }
        curves = pd.concat([*tables, *_compute(progress, further)], ignore_index=True)
        losses = _losses(curves).merge(
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
        return {"curves": curves, "losses": losses, "baselines": baselines}

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """Left: loss against depth, with the seeds; right: the YZ model's loss along training."""
        from joma.reporting.figures import PALETTE, ink, panels

        losses, curves = tables["losses"], tables["curves"]
        losses = losses[losses["chosen"]]
        figure, axes = panels(1, 2, width=4.9, height=4.0)
        left, right = axes[0]
        for colour, model in zip(PALETTE, losses["model"].unique(), strict=False):
            part = losses[losses["model"] == model]
            mean = part.groupby("depth")["loss"].mean()
            left.plot(mean.index, mean, "-o", ms=4, color=colour, label=model)
            left.plot(part["depth"], part["loss"], ".", ms=4, color=colour, alpha=0.5)
        styles = zip(tables["baselines"].itertuples(), ("--", ":"), strict=True)
        for baseline, line in styles:
            for axis in (left, right):
                axis.axhline(baseline.value, color=ink(), lw=0.9, ls=line)
            left.plot([], [], line, color=ink(), lw=0.9, label=baseline.model)
        left.set_xticks(sorted(losses["depth"].unique()))
        left.set_xlabel("layers")
        left.set_ylabel("held-out loss (nats a token)")
        left.set_title("best rate of each model and depth")
        shown = next(iter(losses["model"].unique()))
        chosen = losses.loc[losses["model"] == shown, "run"]
        of_model = curves[curves["run"].isin(chosen) & (curves["metric"] == "validation_loss")]
        for colour, (depth, part) in zip(PALETTE, of_model.groupby("depth"), strict=False):
            mean = part.groupby("step")["value"].mean()
            right.plot(mean.index, mean, color=colour, label=f"{depth} layer{'s' if depth > 1 else ''}")
        right.set_xlabel("step")
        right.set_title(f"{shown}: loss along training")
        right.legend(loc="upper right")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """The slides' five sentences, each a difference of mean losses against its standard error."""
        from joma.experiments.snap_yz_layers.claims import judge_all

        return judge_all(tables)


@functools.lru_cache(maxsize=1)
def _read_text(experiment: SnapYzLayers) -> Any:
    """The token text, once per process; the settings are the key."""
    from joma.data.corpora import load_corpus
    from joma.data.text import Batches, tokenize, validation_windows

    text = tokenize(load_corpus(experiment.corpus), vocabulary_size=experiment.vocabulary_size)
    Batches(text.training, experiment.batch, experiment.length, "random", experiment.seed)
    validation_windows(text.validation, length=experiment.length, most=experiment.windows)
    return text


def _bind(experiment: SnapYzLayers, model: str, depth: int, rate: float, seed: int) -> Any:
    return functools.partial(_train_one, experiment, model, depth, rate, seed)


def _run_name(model: str, depth: int, rate: float, seed: int) -> str:
    return f"{model.replace(', ', '-').replace(' ', '-')}-{depth}-rate-{rate:g}-seed-{seed}"


def _compute(progress: Progress, runs: Mapping[tuple[str, int, float, int], Any]) -> list[pandas.DataFrame]:
    """The tables of these runs, in the order of their names."""
    tables = progress.parts({_run_name(*key): compute for key, compute in runs.items()}) if runs else {}
    return [tables[name] for name in sorted(tables)]


def _train_one(
    experiment: SnapYzLayers, model_name: str, depth: int, rate: float, seed: int, progress: Progress
) -> pandas.DataFrame:
    from joma.models.decoder import Decoder
    from joma.models.language_model import LanguageModel
    from joma.models.yz import YZ
    from joma.training.evaluation import HeldOutText
    from joma.training.loop import Recipe, reproducible, train

    text = _read_text(experiment)
    name = _run_name(model_name, depth, rate, seed)
    form = MODELS[model_name]
    with reproducible(seed):
        model: LanguageModel = (
            Decoder(
                text.vocabulary_size,
                layers=depth,
                width=experiment.width,
                hidden=experiment.width,
                dropout=experiment.dropout,
                longest=experiment.length,
            )
            if form is None
            else YZ(
                text.vocabulary_size,
                layers=depth,
                rank=experiment.rank if model_name == "YZ, low rank" else None,
                longest=experiment.length,
                **form,
            )
        )
        try:
            rows = train(
                model,
                text,
                Recipe(
                    steps=experiment.steps,
                    learning_rate=rate,
                    clip=experiment.clip,
                    batch=experiment.batch,
                    length=experiment.length,
                    seed=seed,
                ),
                measure=HeldOutText(text, length=experiment.length, most_windows=experiment.windows).measure,
                measure_at=[*range(0, experiment.steps, experiment.measure_every), experiment.steps],
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


def _losses(curves: pandas.DataFrame) -> pandas.DataFrame:
    """One row per run: its lowest held-out loss, when, and the last one."""
    held_out = curves[curves["metric"] == "validation_loss"]
    by_run = held_out.groupby(["run", "model", "depth", "learning_rate", "seed"], sort=True)
    best = held_out.loc[by_run["value"].idxmin()].set_index("run")
    table = by_run["value"].agg(loss="min", last="last").reset_index()
    return table.assign(step=table["run"].map(best["step"]), unit="nats")

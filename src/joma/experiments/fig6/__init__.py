"""JoMA Fig. 6: a decoder is trained on real text; its attention entropy dips and bounces back."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Fig6(Experiment):
    """JoMA Fig. 6 (and, with other learning rates, Fig. 8): attention entropy and stable rank along training.

    A decoder (post-norm, one head, dropout) learns to predict the next word. At chosen steps the
    attention entropy of each layer and head (nats, mean over all causal rows of the held-out text), the
    stable rank of each lower MLP layer and the held-out loss are measured.

    The preset ``paper`` is the authors' script on WikiText-2: the full vocabulary, sequential batches,
    learning rate 1e-4, Adam re-created at every epoch, 20 epochs, 1 to 10 layers. Two things differ
    from the paper's text, which does not mention them: the restarts of Adam, and an entropy averaged
    over heads. The preset ``quick`` keeps the model's shape but takes 2,000 words, width 128 and random
    windows (with sequential batches on a small corpus the dip sits on the epoch's boundary).
    """

    title = "Attention entropy and stable rank of a decoder trained on real text: the dip and the bounce"
    reproduces = "JoMA Fig. 6"
    cost = {"quick": "2 min", "paper": "days"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 2, 5, 10),
            "seeds": 3,
            "steps": 58_000,
            "learning_rate": 1e-4,
            "width": 200,
            "hidden": 200,
            "order": "sequential",
            "restart_optimizer": True,
            "measure_every": 1000,
            "windows": None,
        },
    }

    corpus: str = setting(
        "world-english-bible", "corpus name, text file, or folder of train/valid/test files"
    )
    tokenizer: str = setting(
        "words", "'words' (basic English), or a Hugging Face tokenizer: hub id or folder"
    )
    vocabulary_size: int | None = setting(
        2000, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    layers: tuple[int, ...] = setting((1,), "depths of the decoders that are trained", at_least=1)
    seeds: int = setting(2, "runs per depth, with seeds seed, seed + 1, ...", at_least=1)
    steps: int = setting(3500, "minibatches", at_least=1)
    learning_rate: float = setting(1e-3, "Adam's learning rate", above=0)
    width: int = setting(128, "embedding size d", at_least=2)
    hidden: int = setting(128, "width of the MLP's hidden layer", at_least=1)
    heads: int = setting(1, "attention heads", at_least=1)
    dropout: float = setting(0.2, "dropout probability", at_least=0, below=1)
    batch: int = setting(20, "windows in a minibatch", at_least=1)
    length: int = setting(35, "tokens in a window (bptt)", at_least=2)
    order: str = setting(
        "random",
        "windows at random places, or sequential as the authors read them",
        choices=("random", "sequential"),
    )
    restart_optimizer: bool = setting(False, "create Adam anew at every epoch, as the authors' script does")
    clip: float = setting(0.5, "largest norm of the gradient", above=0)
    measure_every: int = setting(
        50, "steps between measurements (up to 25 times as dense at first)", at_least=1
    )
    windows: int | None = setting(200, "held-out windows measured (none: all)", at_least=1)
    authors_curves: str = setting(
        "", "CSV of the authors' recorded curves, to compare with (corpus wikitext-2)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        points = self.steps // self.measure_every + 1
        if points < 8:
            raise InputError(
                f"fig6: {self.steps} steps measured every {self.measure_every} give {points} points, "
                "too few to find a dip; measure more often or train longer."
            )

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured: dense at the start, where an early dip may hide."""
        fine, dense = max(1, self.measure_every // 25), max(1, self.measure_every // 5)
        first = range(0, min(20 * fine, self.steps), fine)
        early = range(0, min(4 * self.measure_every, self.steps), dense)
        late = range(0, self.steps + 1, self.measure_every)
        return sorted({*first, *early, *late, self.steps})

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``curves`` (every measurement) and ``bounces`` (dip and rebound of each curve)."""
        import pandas as pd

        # Read once here, so that a bad text is an error before any process is started.
        _read_text(self)
        runs = {
            f"layers-{depth}-seed-{seed}": functools.partial(_train_one, self, depth, seed)
            # The deepest first: they take longest, and the others fill the gaps.
            for depth in sorted(self.layers, reverse=True)
            for seed in range(self.seed, self.seed + self.seeds)
        }
        tables = progress.parts(runs)
        curves = pd.concat([tables[name] for name in sorted(tables)], ignore_index=True)
        return {"curves": curves, "bounces": _find_bounces(curves, self.measure_every)}

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """A row per depth: entropy, stable rank, held-out loss along training, with the dips marked."""
        from joma.experiments.fig6.claims import SIGNIFICANT
        from joma.reporting.figures import PALETTE, ink, panels

        curves, bounces = tables["curves"], tables["bounces"]
        depths = sorted(curves["depth"].unique())
        metrics = {
            "attention_entropy": "attention entropy (nats)",
            "stable_rank": "stable rank of lower MLP",
            "validation_loss": "held-out loss (nats)",
        }
        figure, axes = panels(len(depths), 3, width=3.9, height=2.9, sharex=True)
        for row, depth in enumerate(depths):
            for column, (metric, label) in enumerate(metrics.items()):
                axis = axes[row, column]
                part = curves[(curves["depth"] == depth) & (curves["metric"] == metric)]
                for layer, of_layer in part.groupby(part["layer"].fillna(-1)):
                    colour = PALETTE[int(layer) % len(PALETTE)] if layer >= 0 else ink()
                    by_seed = of_layer.groupby(["step", "seed"])["value"].mean().unstack("seed")
                    axis.plot(by_seed.index, by_seed.to_numpy(), color=colour, lw=0.8, alpha=0.45)
                    axis.plot(by_seed.index, by_seed.mean(axis=1), color=colour, label=f"layer {layer:.0f}")
                found = bounces[
                    (bounces["depth"] == depth)
                    & (bounces["metric"] == metric)
                    & (bounces["rebound_probability"] < SIGNIFICANT)
                ]
                axis.plot(found["dip_step"], found["dip_value"], "v", ms=6, color=ink(), alpha=0.8, ls="none")
                axis.set_xscale("function", functions=(_root, _square))
                axis.set_xlim(0, self.steps)
                axis.set_xticks([round(share * self.steps) for share in (0, 0.02, 0.1, 0.3, 0.6, 1)])
                axis.set_title(label + (f", {depth} layer{'s' if depth > 1 else ''}" if column == 0 else ""))
                if row == len(depths) - 1:
                    axis.set_xlabel("minibatch (square-root scale)")
            if depth > 1:
                axes[row, 0].legend(ncols=2)
        mean = "thin: one seed, thick: their mean; triangles: dips whose rebound is not noise"
        figure.suptitle(
            f"{Path(self.corpus).name}, learning rate {self.learning_rate:g} ({mean})", fontsize=9.5
        )
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """What Fig. 6 and its text say, each against its null."""
        from joma.experiments.fig6.claims import (
            bottom_bounces_less,
            early_transient,
            falls,
            rank_follows,
            rises,
        )

        bounces = tables["bounces"]
        top = bounces[bounces["layer"] == bounces["depth"] - 1]
        entropy = top[top["metric"] == "attention_entropy"]
        rank = top[top["metric"] == "stable_rank"]
        return [
            falls(entropy),
            rises(entropy),
            early_transient(entropy, self.learning_rate),
            bottom_bounces_less(bounces),
            *rank_follows(rank, entropy),
            self._agrees_with_authors(tables["curves"]),
        ]

    def _agrees_with_authors(self, curves: pandas.DataFrame) -> Claim:
        from joma.claim import not_tested
        from joma.experiments.fig6.claims import compare_with_authors

        facts: dict[str, str] = {
            "id": "fig6.authors",
            "source": "JoMA Fig. 6, authors' recorded curves",
            "statement": "the top layer's entropy over training has the shape of the authors' own curve",
        }
        if "wikitext-2" not in self.corpus.replace("_", "-").lower():
            return not_tested(**facts, reason=f"the corpus is {self.corpus}, not WikiText-2")
        if not self.authors_curves:
            return not_tested(
                **facts, reason="no file of the authors' curves was given (setting authors_curves)"
            )
        return compare_with_authors(curves, self.authors_curves, self.learning_rate, self.seed, facts)


def _root(x: Any) -> Any:
    import numpy as np

    return np.sqrt(np.maximum(x, 0.0))


def _square(x: Any) -> Any:
    return x * x


@functools.lru_cache(maxsize=1)
def _read_text(experiment: Fig6) -> Any:
    """The token text, once per process; the settings are the key."""
    from joma.data.corpora import load_corpus
    from joma.data.text import Batches, tokenize, validation_windows

    text = tokenize(
        load_corpus(experiment.corpus),
        tokenizer=experiment.tokenizer,
        vocabulary_size=experiment.vocabulary_size,
    )
    Batches(text.training, experiment.batch, experiment.length, experiment.order, experiment.seed)
    validation_windows(text.validation, length=experiment.length, most=experiment.windows)
    return text


def _train_one(experiment: Fig6, depth: int, seed: int, progress: Progress) -> pandas.DataFrame:
    from joma.models.decoder import Decoder
    from joma.training.evaluation import HeldOutText
    from joma.training.loop import Recipe, reproducible, train

    text = _read_text(experiment)
    name = f"layers-{depth}-seed-{seed}"
    held_out = HeldOutText(text, length=experiment.length, most_windows=experiment.windows)
    recipe = Recipe(
        steps=experiment.steps,
        learning_rate=experiment.learning_rate,
        clip=experiment.clip,
        batch=experiment.batch,
        length=experiment.length,
        order=experiment.order,
        restart_optimizer=experiment.restart_optimizer,
        seed=seed,
    )
    with reproducible(seed):
        model = Decoder(
            text.vocabulary_size,
            layers=depth,
            width=experiment.width,
            hidden=experiment.hidden,
            heads=experiment.heads,
            dropout=experiment.dropout,
            longest=experiment.length,
        )
        rows = train(
            model,
            text,
            recipe,
            measure=held_out.measure,
            measure_at=experiment.measured_steps(),
            progress=progress,
            label=f"fig6: {depth} layer{'s' if depth > 1 else ''}, seed {seed}",
            checkpoints=progress.checkpoint_folder(name),
        )
    return rows.assign(run=name, depth=depth, seed=seed, dtype="float32")[
        ["run", "depth", "seed", "step", "layer", "head", "metric", "value", "unit", "dtype"]
    ]


def _find_bounces(curves: pandas.DataFrame, every: int) -> pandas.DataFrame:
    """One row per run, layer and metric (entropy averaged over heads): dip, rebound, their nulls.

    Dip and rebound are sought among evenly spaced measurements. Where an early transient was sampled
    more densely, it would count as noise of the whole curve; it is sought among all measurements.
    """
    import pandas as pd

    from joma.measures.bounce import bounce

    rows = []
    of_layers = curves[curves["layer"].notna()]
    for (run, metric, layer), part in of_layers.groupby(["run", "metric", "layer"], sort=True):
        curve = part.groupby("step")["value"].mean()
        even = curve[curve.index % every == 0]
        found = bounce(even.index.to_numpy(), even.to_numpy())
        dense = bounce(curve.index.to_numpy(), curve.to_numpy(), resamples=1)
        first = next((dip for dip in dense.transients if dip.step < found.main.step), None)
        rows.append(
            {
                "run": run,
                "depth": part["depth"].iloc[0],
                "seed": part["seed"].iloc[0],
                "layer": int(layer),
                "metric": metric,
                "start": curve.iloc[0],
                "end": curve.iloc[-1],
                "dip_step": found.main.step,
                "dip_value": found.main.value,
                "depth_of_dip": found.main.depth,
                "dip_null": found.dip_null,
                "dip_probability": found.dip_probability,
                "rebound": found.main.rebound,
                "rebound_step": found.main.rebound_step,
                "rebound_null": found.rebound_null,
                "rebound_probability": found.rebound_probability,
                "noise": found.noise,
                "noise_of_all": dense.noise,
                "transient_step": first.step if first else None,
                "transient_depth": first.depth if first else None,
                "transient_rebound": first.rebound if first else None,
            }
        )
    return pd.DataFrame(rows)

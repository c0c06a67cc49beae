"""Does the bounce help? A decoder's attention is stopped at the dip, and the loss it costs is measured."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.experiments.bounce_helps.claims import WAYS
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

LATEST = 0.75
SHORT = {"projections": "frozen", "entropy": "pinned"}


@dataclass(frozen=True, kw_only=True)
class BounceHelps(Experiment):
    """The poster's claim that nobody tested: the bounce is useless in one layer and useful in several.

    A decoder is trained on real text. Runs that are the same up to the step of the dip (the lowest point of
    the top layer's smoothed attention entropy within the first three quarters) then differ: in one the
    query and key projections of every layer are frozen; in another they go on learning, but a temperature
    per head holds its entropy where it was. All else goes on. The cost is the held-out loss at the end
    minus that of the untouched run with the same seed, batches and dropout. The null does the same at a
    random other step: if stopping costs there as much, nothing is special about the phase after the dip.

    The preset ``quick`` trains small models on the Python reference at a large learning rate, where the
    dip comes early; ``paper`` uses the model and learning rate of Fig. 6.

    Tables: ``curves`` (every measurement of every run), ``costs`` (one row per run that was stopped),
    ``bounces`` (the untouched runs' dips and rebounds).
    """

    title = (
        "Attention stopped at the dip of its entropy: what the bounce is worth, in one layer and in several"
    )
    reproduces = "JoMA Sec. 5 and poster (a claim without a figure)"
    cost = {"quick": "1 min", "paper": "days"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 3, 5),
            "seeds": 5,
            "steps": 58_000,
            "learning_rate": 1e-4,
            "width": 200,
            "measure_every": 1000,
            "windows": None,
        },
    }

    corpus: str = setting("python-reference", "corpus name, text file, or folder of train/valid/test files")
    vocabulary_size: int | None = setting(
        400, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    layers: tuple[int, ...] = setting((1, 2), "depths; one of them 1, to compare with", at_least=1)
    seeds: int = setting(3, "runs per depth, with seeds seed, seed + 1, ...", at_least=2)
    steps: int = setting(240, "minibatches", at_least=1)
    learning_rate: float = setting(5e-3, "Adam's learning rate", above=0)
    width: int = setting(48, "embedding size d, and width of the MLP's hidden layer", at_least=2)
    dropout: float = setting(0.2, "dropout probability", at_least=0, below=1)
    batch: int = setting(10, "windows in a minibatch", at_least=1)
    length: int = setting(35, "tokens in a window", at_least=2)
    measure_every: int = setting(10, "steps between measurements", at_least=1)
    windows: int | None = setting(40, "held-out windows measured (none: all)", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.stopping_steps()) < 8:
            raise InputError(
                f"bounce_helps: {self.steps} steps measured every {self.measure_every} leave "
                f"{len(self.stopping_steps())} steps to stop attention at; measure more often."
            )

    def stopping_steps(self) -> list[int]:
        """The measured steps at which attention may be stopped: not at the start, not at the end."""
        return [
            s for s in range(self.measure_every, self.steps, self.measure_every) if s <= LATEST * self.steps
        ]

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Untouched runs first; then, where their dips are known, the stopped ones."""
        import pandas as pd

        _read_text(self)
        cells = [(depth, seed) for depth in sorted(self.layers, reverse=True) for seed in self._seeds()]
        untouched = progress.parts(
            {
                f"layers-{depth}-seed-{seed}": functools.partial(_train_one, self, depth, seed, "", "", 0)
                for depth, seed in cells
            }
        )
        bounces = pd.DataFrame(
            [_bounce(self, depth, seed, untouched[f"layers-{depth}-seed-{seed}"]) for depth, seed in cells]
        )
        stopped = {
            f"layers-{row.depth}-seed-{row.seed}-{way}-{when}": functools.partial(
                _train_one, self, row.depth, row.seed, way, when, int(step)
            )
            for row in bounces.itertuples()
            for way in WAYS
            for when, step in (("dip", row.dip_step), ("random", row.random_step))
        }
        tables = untouched | progress.parts(stopped)
        curves = pd.concat([tables[name] for name in sorted(tables)], ignore_index=True)
        return {"curves": curves, "costs": _costs(curves), "bounces": bounces}

    def _seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """A row per depth: entropy of the top layer, loss gap to the untouched run, costs at the end."""
        from joma.reporting.figures import PALETTE, ink, panels

        curves, costs = tables["curves"], tables["costs"]
        depths = sorted(curves["depth"].unique())
        figure: Figure
        figure, axes = panels(len(depths), 3, width=3.9, height=3.0)
        colours = {"": ink(), "projections": PALETTE[1], "entropy": PALETTE[0]}
        for row, depth in enumerate(depths):
            of_depth = curves[curves["depth"] == depth]
            entropy = of_depth[
                (of_depth["metric"] == "attention_entropy") & (of_depth["layer"] == depth - 1)
            ].query("when != 'random'")
            for way, part in entropy.groupby("way", sort=True):
                mean = part.groupby("step")["value"].mean()
                label = WAYS.get(str(way), "untouched")
                axes[row, 0].plot(mean, color=colours[str(way)], label=label, lw=2.4 if way == "" else 1.3)
            loss = of_depth[of_depth["metric"] == "validation_loss"]
            plain = loss[loss["way"] == ""].set_index(["seed", "step"])["value"]
            for (way, when), part in loss[loss["way"] != ""].groupby(["way", "when"]):
                gap = (part.set_index(["seed", "step"])["value"] - plain).groupby("step").mean()
                dashes = "-" if when == "dip" else ":"
                axes[row, 1].plot(gap, dashes, color=colours[str(way)], label=f"{SHORT[str(way)]}, {when}")
            axes[row, 1].axhline(0, color=ink(), lw=0.8)
            cells = [(way, when) for way in WAYS for when in ("dip", "random")]
            for place, (way, when) in enumerate(cells):
                cost = costs[(costs["depth"] == depth) & (costs["way"] == way) & (costs["when"] == when)]
                filled = {"color": colours[way]} if when == "dip" else {"mfc": "none", "color": colours[way]}
                axes[row, 2].plot(
                    [place] * len(cost), cost["cost"], "o", ls="none", ms=6, alpha=0.8, **filled
                )
                axes[row, 2].hlines(cost["cost"].mean(), place - 0.25, place + 0.25, color=colours[way])
            axes[row, 2].axhline(0, color=ink(), lw=0.8)
            axes[row, 2].set_xticks(range(len(cells)), [f"{SHORT[way]}\n{when}" for way, when in cells])
            axes[row, 2].set_xlim(-0.5, len(cells) - 0.5)
            name = f"{depth} layer{'s' if depth > 1 else ''}"
            axes[row, 0].set(ylabel="entropy of the top layer (nats)", title=f"{name}: attention entropy")
            axes[row, 1].set(ylabel="held-out loss − untouched (nats)", title=f"{name}: loss gap, mean")
            axes[row, 2].set(ylabel="cost at the end (nats)", title=f"{name}: each seed, and their mean")
            for column in (0, 1):
                axes[row, column].set_xlabel("minibatch")
        for column in (0, 1):
            axes[-1, column].legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, fontsize=8)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Is there a bounce; what does stopping at the dip cost in one layer and in several?"""
        from joma.experiments.bounce_helps.claims import (
            dip_is_special,
            entropy_was_held,
            there_is_a_bounce,
            useful_in_several,
            useless_in_one_layer,
        )

        bounces, costs = tables["bounces"], tables["costs"]
        several = [depth for depth in self.layers if depth > 1]
        return [
            there_is_a_bounce(bounces),
            useless_in_one_layer(costs),
            *(useful_in_several(costs, several, way) for way in WAYS),
            dip_is_special(costs, several),
            entropy_was_held(tables["curves"], bounces),
        ]


@functools.lru_cache(maxsize=1)
def _read_text(experiment: BounceHelps) -> Any:
    """The token text, once per process; the settings are the key."""
    from joma.data.corpora import load_corpus
    from joma.data.text import Batches, tokenize, validation_windows

    text = tokenize(
        load_corpus(experiment.corpus), tokenizer="words", vocabulary_size=experiment.vocabulary_size
    )
    Batches(text.training, experiment.batch, experiment.length, "random", experiment.seed)
    validation_windows(text.validation, length=experiment.length, most=experiment.windows)
    return text


def _train_one(
    experiment: BounceHelps, depth: int, seed: int, way: str, when: str, stop: int, progress: Progress
) -> pandas.DataFrame:
    """One run; with a ``way``, attention is stopped at step ``stop``, just after it was measured there."""
    from joma.experiments.bounce_helps.freezing import stop_attention
    from joma.models.decoder import Decoder
    from joma.training.evaluation import HeldOutText
    from joma.training.loop import Recipe, reproducible, train

    text = _read_text(experiment)
    held_out = HeldOutText(text, length=experiment.length, most_windows=experiment.windows)
    recipe = Recipe(
        steps=experiment.steps,
        learning_rate=experiment.learning_rate,
        batch=experiment.batch,
        length=experiment.length,
        seed=seed,
    )

    def measure(model: Decoder, step: int) -> list[dict[str, Any]]:
        rows = held_out.measure(model, step)
        if way and step == stop:
            entropies: dict[int, list[float]] = {}
            for row in rows:
                if row["metric"] == "attention_entropy":
                    entropies.setdefault(row["layer"], []).append(row["value"])
            stop_attention(model, way, entropies)
        return rows

    name = f"layers-{depth}-seed-{seed}" + (f"-{way}-{when}" if way else "")
    with reproducible(seed):
        model = Decoder(
            text.vocabulary_size,
            layers=depth,
            width=experiment.width,
            hidden=experiment.width,
            dropout=experiment.dropout,
            longest=experiment.length,
        )
        rows = train(
            model,
            text,
            recipe,
            measure=measure,
            measure_at=sorted({*range(0, experiment.steps, experiment.measure_every), experiment.steps}),
            progress=progress,
            label=f"bounce_helps: {name}",
            # A stopped model has other parts than the one a checkpoint would be loaded into.
            checkpoints=None if way else progress.checkpoint_folder(name),
        )
    columns = ["run", "depth", "seed", "way", "when", "stop", "step", "layer", "head", "metric", "value"]
    return rows.assign(run=name, depth=depth, seed=seed, way=way, when=when, stop=stop)[[*columns, "unit"]]


def _bounce(experiment: BounceHelps, depth: int, seed: int, curves: pandas.DataFrame) -> dict[str, Any]:
    """The dip of the top layer's entropy, its rebound, and a random other step."""
    import numpy as np

    from joma.measures.bounce import bounce, smooth

    top = curves[(curves["metric"] == "attention_entropy") & (curves["layer"] == depth - 1)]
    curve = top.groupby("step")["value"].mean()
    found = bounce(curve.index.to_numpy(), curve.to_numpy())
    level = dict(zip(curve.index, smooth(curve.to_numpy(), 3), strict=True))
    allowed = experiment.stopping_steps()
    dip = min(allowed, key=lambda step: level[step])
    apart = max(2 * experiment.measure_every, 0.1 * experiment.steps)
    others = [step for step in allowed if abs(step - dip) >= apart]
    return {
        "run": f"layers-{depth}-seed-{seed}",
        "depth": depth,
        "seed": seed,
        "dip_step": dip,
        "dip_value": level[dip],
        "rebound": max(level[step] for step in curve.index if step >= dip) - level[dip],
        "rebound_null": found.rebound_null,
        "rebound_probability": found.rebound_probability,
        "random_step": int(np.random.default_rng([seed, depth]).choice(others)),
    }


def _costs(curves: pandas.DataFrame) -> pandas.DataFrame:
    """Held-out loss of each stopped run minus the untouched one's, over the last tenth of the steps."""
    loss = curves[curves["metric"] == "validation_loss"]
    late = loss[loss["step"] >= 0.9 * loss["step"].max()]
    keys = ["depth", "seed", "way", "when", "stop"]
    ends = late.groupby(keys)["value"].mean().reset_index()
    plain = ends[ends["way"] == ""].set_index(["depth", "seed"])["value"]
    costs = ends[ends["way"] != ""].reset_index(drop=True)
    before = plain.loc[list(zip(costs["depth"], costs["seed"], strict=True))].to_numpy()
    return costs.assign(untouched=before, cost=costs["value"] - before, unit="nats")

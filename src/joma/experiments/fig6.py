"""JoMA Fig. 6: a decoder is trained on real text; its attention entropy dips and bounces back."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joma.errors import InputError
from joma.experiments.base import Experiment, setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.progress import Progress
    from joma.reporting.claims import Claim

LEAST_DIP = 0.5
LEAST_REBOUND = 0.2
SIGNIFICANT = 0.05


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

    title = "attention entropy and stable rank of a decoder trained on real text: the dip and the bounce"
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
        if not self.layers:
            raise InputError("fig6: setting layers is empty; give at least one depth.")
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
        bounces = tables["bounces"]
        top = bounces[bounces["layer"] == bounces["depth"] - 1]
        entropy = top[top["metric"] == "attention_entropy"]
        rank = top[top["metric"] == "stable_rank"]
        return [
            _falls(entropy),
            _rises(entropy),
            _early_transient(entropy, self.learning_rate),
            _bottom_bounces_less(bounces),
            *_rank_follows(rank, entropy),
            self._agrees_with_authors(tables["curves"]),
        ]

    def _agrees_with_authors(self, curves: pandas.DataFrame) -> Claim:
        from joma.reporting.claims import not_tested

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
        return _compare_with_authors(curves, self.authors_curves, self.learning_rate, self.seed, facts)


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


def _falls(entropy: pandas.DataFrame) -> Claim:
    from joma.reporting.claims import judge

    worst = entropy.loc[entropy["depth_of_dip"].idxmin()]
    return judge(
        bool(worst["depth_of_dip"] >= LEAST_DIP and entropy["dip_probability"].max() < SIGNIFICANT),
        id="fig6.falls",
        source="JoMA Fig. 6, Sec. 4",
        statement="the top layer's attention entropy falls first: attention becomes sparse",
        expected=f"a dip of at least {LEAST_DIP} nats in every run, p < {SIGNIFICANT}",
        measured=worst["depth_of_dip"],
        tolerance=LEAST_DIP,
        null=entropy["dip_null"].max(),
        null_description="depth that 1 in 20 flat curves with the same noise exceeds",
        evidence=f"smallest of {len(entropy)} runs, at step {worst['dip_step']:g}; "
        f"largest p {entropy['dip_probability'].max():.2g}",
    )


def _rises(entropy: pandas.DataFrame) -> Claim:
    from joma.reporting.claims import judge

    worst = entropy.loc[entropy["rebound"].idxmin()]
    return judge(
        bool(worst["rebound"] >= LEAST_REBOUND and entropy["rebound_probability"].max() < SIGNIFICANT),
        id="fig6.rebound",
        source="JoMA Fig. 6, Sec. 4",
        statement="after the dip the top layer's attention entropy rises again: attention becomes dense",
        expected=f"a rebound of at least {LEAST_REBOUND} nats over the smoothed dip in every run, "
        f"p < {SIGNIFICANT}",
        measured=worst["rebound"],
        tolerance=LEAST_REBOUND,
        null=entropy["rebound_null"].max(),
        null_description="rebound that 1 in 20 flat curves with the same noise exceeds",
        evidence=f"smallest of {len(entropy)} runs; largest p {entropy['rebound_probability'].max():.2g}",
    )


def _early_transient(entropy: pandas.DataFrame, learning_rate: float) -> Claim:
    from joma.reporting.claims import judge

    seen = entropy["transient_step"].notna()
    smallest = (
        entropy.loc[seen, ["transient_depth", "transient_rebound"]].min(axis=1).min() if seen.any() else 0.0
    )
    when = entropy.loc[seen, "transient_step"]
    where = (
        f"at learning rate x step {learning_rate * when.min():.2g} to {learning_rate * when.max():.2g}"
        if seen.any()
        else "none"
    )
    return judge(
        bool(seen.all()),
        id="fig6.early",
        source="authors' recorded curves at learning rate 1e-6 (not in the paper)",
        statement="a smaller dip that recovers comes before the main dip "
        "(hidden when one samples every 1000 steps)",
        expected="in every run, a dip and recovery above three standard deviations of the noise",
        measured=float(smallest),
        tolerance=None,
        null=float(3 * entropy["noise_of_all"].max()),
        null_description="three standard deviations of the noise",
        evidence=f"{int(seen.sum())} of {len(entropy)} runs, {where}; "
        "measured is the smaller of dip and recovery, in nats",
    )


def _bottom_bounces_less(bounces: pandas.DataFrame) -> Claim:
    from joma.reporting.claims import judge, not_tested

    facts: dict[str, Any] = {
        "id": "fig6.bottom",
        "source": "JoMA Fig. 6",
        "statement": "in deep models the bottom layer's entropy rebounds less than the top layer's",
    }
    deep = bounces[(bounces["metric"] == "attention_entropy") & (bounces["depth"] > 1)]
    if deep.empty:
        return not_tested(**facts, reason="no model with more than one layer was trained (setting layers)")
    bottom = deep[deep["layer"] == 0].set_index("run")
    top = deep[deep["layer"] == deep["depth"] - 1].set_index("run")
    gain = top["rebound"] - bottom["rebound"]
    return judge(
        bool(gain.min() > 0 and gain.mean() > deep["rebound_null"].max()),
        **facts,
        expected="rebound of top minus bottom layer positive in every run, its mean above the null",
        measured=float(gain.mean()),
        null=float(deep["rebound_null"].max()),
        null_description="rebound that 1 in 20 flat curves with the same noise exceeds",
        evidence=f"mean of {len(gain)} runs in nats; smallest {gain.min():.3f}",
    )


def _rank_follows(rank: pandas.DataFrame, entropy: pandas.DataFrame) -> list[Claim]:
    from joma.reporting.claims import judge

    fall, rise = rank["depth_of_dip"] / rank["start"], rank["rebound"] / rank["start"]
    source = "JoMA Sec. 4 (rank of the lower MLP layer)"
    significant = f"p < {SIGNIFICANT}"
    return [
        judge(
            bool(fall.min() > 0.1 and rank["dip_probability"].max() < SIGNIFICANT),
            id="fig6.rank_falls",
            source=source,
            statement="the stable rank of the top lower MLP layer falls as attention becomes sparse",
            expected=f"a fall of more than a tenth of its start in every run, {significant}",
            measured=float(fall.min()),
            tolerance=0.1,
            null=float((rank["dip_null"] / rank["start"]).max()),
            null_description="share that 1 in 20 flat curves with the same noise exceeds",
            evidence=f"smallest share of {len(rank)} runs; "
            f"from {rank['start'].mean():.1f} to {rank['dip_value'].mean():.1f}",
        ),
        judge(
            bool(rise.min() > 0.02 and rank["rebound_probability"].max() < SIGNIFICANT),
            id="fig6.rank_rebounds",
            source=source,
            statement="the stable rank of the top lower MLP layer rises again, as the entropy does",
            expected=f"a rise of more than a fiftieth of its start after its dip in every run, {significant}",
            measured=float(rise.min()),
            tolerance=0.02,
            null=float((rank["rebound_null"] / rank["start"]).max()),
            null_description="share that 1 in 20 flat curves with the same noise exceeds",
            evidence=f"rank dips at step {rank['dip_step'].min():g} to {rank['dip_step'].max():g}, "
            f"entropy at {entropy['dip_step'].min():g} to {entropy['dip_step'].max():g}",
        ),
    ]


def _compare_with_authors(
    curves: pandas.DataFrame, path: str, learning_rate: float, seed: int, facts: dict[str, Any]
) -> Claim:
    """Rank correlation over common steps with the authors' curve of the same depth and learning rate."""
    import numpy as np
    import pandas as pd
    from scipy.stats import spearmanr

    from joma.reporting.claims import judge, not_tested

    try:
        theirs = pd.read_csv(path)
        theirs = theirs[np.isclose(theirs["lr"], learning_rate, rtol=1e-6)]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"fig6: authors_curves = {path!r} cannot be read as their table ({error})."
        ) from error
    correlations, nulls = [], []
    random = np.random.default_rng(seed)
    entropy = curves[curves["metric"] == "attention_entropy"]
    for depth, of_depth in entropy.groupby("depth"):
        reference = theirs[theirs["layers"] == depth]
        if reference.empty:
            continue
        reference = reference.groupby("minibatch")[f"entropy_layer{depth - 1}"].mean()
        ours = of_depth[of_depth["layer"] == depth - 1].groupby("step")["value"].mean()
        steps = reference.index[reference.index <= ours.index.max()]
        if len(steps) < 8:
            continue
        pair = np.interp(steps, ours.index, ours.to_numpy()), reference.loc[steps].to_numpy()
        correlations.append(spearmanr(*pair).statistic)
        shuffled = [spearmanr(random.permutation(pair[0]), pair[1]).statistic for _ in range(500)]
        nulls.append(np.quantile(shuffled, 0.95))
    if not correlations:
        return not_tested(
            **facts,
            reason=f"no curve of theirs has these depths, learning rate {learning_rate:g} and 8 common steps",
        )
    return judge(
        bool(min(correlations) > max(0.5, *nulls)),
        **facts,
        expected="rank correlation over the common steps above 0.5 and above the null, for every depth",
        measured=float(min(correlations)),
        tolerance=0.5,
        null=float(max(nulls)),
        null_description="correlation that 1 in 20 time-shuffled curves exceeds",
        evidence=f"smallest of {len(correlations)} depths",
    )

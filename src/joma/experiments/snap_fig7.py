"""Scan&Snap Fig. 7: attention of decoders trained on real text by SGD becomes sparse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.errors import InputError
from joma.experiments.base import Experiment, setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.progress import Progress
    from joma.reporting.claims import Claim

LEAST_FALL = 0.3
MEASURES = {
    "attention_entropy": "nats",
    "own_token": "",
    "common_tokens": "",
    "uniform_entropy": "nats",
    "uniform_own_token": "",
}


@dataclass(frozen=True, kw_only=True)
class SnapFig7(Experiment):
    """Attention maps and sparsity of 1- and 3-layer decoders trained with plain SGD, learning rate 5.

    The model is the ordinary one (embeddings, positions, residuals, MLP), not the paper's one-layer theory:
    the figure asks whether the theory's sparse attention is seen there. Measured on held-out windows, layer
    by layer: the mean entropy of attention rows; the attention that a token pays to itself; and the share
    that the ``common`` most frequent tokens get, relative to their share under uniform attention (below 1:
    common tokens are suppressed). Each depth is trained a second time on the same text with its words
    shuffled, where there is nothing to attend to: the null.

    The preset ``paper`` takes the full vocabulary of WikiText-2 in sequential batches; dropout 0.2 and the
    clipping of the gradient at 0.5 are those of the authors' script, not in the slides. ``quick`` keeps the
    steps and the learning rate, with 1,000 words and width 64.

    Tables: ``curves`` (every measure), ``maps`` (attention of the lowest layer in one held-out window).
    """

    title = "attention patterns of decoders trained with SGD: they become sparse"
    reproduces = "Scan&Snap Fig. 7"
    cost: ClassVar[Mapping[str, str]] = {"quick": "2 min", "paper": "1 h"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "seeds": 3,
            "width": 200,
            "hidden": 200,
            "order": "sequential",
        },
    }

    corpus: str = setting("python-reference", "corpus name, text file, or folder of train/valid/test files")
    vocabulary_size: int | None = setting(
        1000, "most frequent words kept, <unk> included (none: all)", at_least=2
    )
    layers: tuple[int, ...] = setting((1, 3), "depths of the decoders that are trained", at_least=1)
    seeds: int = setting(2, "runs per depth, with seeds seed, seed + 1, ...", at_least=1)
    pictured: tuple[int, ...] = setting(
        (0, 500, 1000, 1500),
        "minibatches after which attention is pictured; the last one ends training",
        at_least=0,
    )
    measure_every: int = setting(100, "steps between measurements", at_least=1)
    learning_rate: float = setting(5.0, "SGD's learning rate, without momentum", above=0)
    clip: float = setting(0.5, "largest norm of the gradient", above=0)
    width: int = setting(64, "embedding size d", at_least=2)
    hidden: int = setting(64, "width of the MLP's hidden layer", at_least=1)
    dropout: float = setting(0.2, "dropout probability", at_least=0, below=1)
    batch: int = setting(20, "windows in a minibatch", at_least=1)
    length: int = setting(35, "tokens in a window (bptt)", at_least=2)
    order: str = setting(
        "random",
        "windows at random places, or sequential as the authors read them",
        choices=("random", "sequential"),
    )
    windows: int = setting(100, "held-out windows measured", at_least=1)
    common: int = setting(20, "the most frequent tokens, taken as the common ones", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise InputError("snap_fig7: setting layers is empty; give at least one depth.")
        steps = self.pictured
        if len(steps) < 2 or steps[0] != 0 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise InputError(
                f"snap_fig7: setting pictured = {steps} must begin with 0 (the untrained model) and increase."
            )

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Every depth and seed on the text, and each depth once on the shuffled text."""
        import pandas as pd

        # Read once here, so that a bad text is an error before any process is started.
        _read_text(self)
        cells = [
            (depth, seed, shuffled)
            for depth in sorted(self.layers, reverse=True)
            for seed in range(self.seed, self.seed + self.seeds)
            for shuffled in ((False, True) if seed == self.seed else (False,))
        ]
        runs = {
            f"layers-{depth}-seed-{seed}{'-shuffled' if shuffled else ''}": functools.partial(
                _train_one, self, depth, seed, shuffled
            )
            for depth, seed, shuffled in cells
        }
        tables = progress.parts(runs)
        rows = pd.concat([tables[name] for name in sorted(tables)], ignore_index=True)
        is_map = rows["metric"] == "attention"
        of_maps = ["query", "key", "query_token", "key_token"]
        return {
            "curves": rows[~is_map].drop(columns=of_maps).reset_index(drop=True),
            "maps": rows[is_map].reset_index(drop=True).astype({"query": int, "key": int, "layer": int}),
        }

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """A row per depth: the maps at the pictured steps, then the entropy over training."""
        from joma.reporting.figures import PALETTE, ink, panels

        curves, maps = tables["curves"], tables["maps"]
        maps = maps[(maps["text"] == "real") & (maps["seed"] == maps["seed"].min())]
        depths = sorted(maps["depth"].unique())
        steps = sorted(maps["step"].unique())
        figure, axes = panels(
            len(depths),
            len(steps) + 1,
            width=2.5,
            height=2.6,
            width_ratios=[1.0] * len(steps) + [1.7],
        )
        for row, depth in enumerate(depths):
            of_depth = maps[maps["depth"] == depth]
            for column, step in enumerate(steps):
                axis = axes[row, column]
                grid = of_depth[of_depth["step"] == step].pivot(index="query", columns="key", values="value")
                image = axis.imshow(grid.to_numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
                axis.grid(False)
                axis.set_title(f"step {step}" if row == 0 else "")
                axis.set_xlabel("attended position" if row == len(depths) - 1 else "")
                axis.set_ylabel(f"{depth} layer{'s' if depth > 1 else ''}\nposition" if column == 0 else "")
                if column:
                    axis.set_yticklabels([])
                if column == len(steps) - 1:
                    figure.colorbar(image, ax=axis, label="attention", pad=0.03)
            axis = axes[row, -1]
            entropy = curves[(curves["depth"] == depth) & (curves["metric"] == "attention_entropy")]
            for layer in range(depth):
                of_layer = entropy[entropy["layer"] == layer]
                for text, style in (("real", "-"), ("shuffled", ":")):
                    mean = of_layer[of_layer["text"] == text].groupby("step")["value"].mean()
                    label = f"layer {layer}" if text == "real" else None
                    axis.plot(mean.index, mean, style, color=PALETTE[layer % len(PALETTE)], label=label)
            axis.plot([], [], ":", color=ink(), label="shuffled text")
            uniform = curves.loc[curves["metric"] == "uniform_entropy", "value"].mean()
            axis.axhline(uniform, color=ink(), lw=0.8, ls="--", label="uniform attention")
            axis.set_ylim(0, 1.45 * uniform)
            axis.set_ylabel("attention entropy (nats)")
            axis.set_xlabel("step" if row == len(depths) - 1 else "")
            axis.set_title("mean over seeds" if row == 0 else "")
            axis.legend(loc="upper right", ncols=2, fontsize=7.5)
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """Sparsity in the lowest layer, its course, what it is made of."""
        curves = tables["curves"]
        ends = _starts_and_ends(curves[curves["layer"].fillna(0) == 0])
        steps = sorted(tables["maps"]["step"].unique().tolist())
        claims = []
        for depth in sorted(curves["depth"].unique().tolist()):
            claims.append(_becomes_sparse(depth, ends[ends["depth"] == depth]))
            claims.append(_because_of_order(depth, curves, steps))
        claims.append(_keeps_falling(curves, steps))
        claims += [_common_suppressed(ends), _on_the_diagonal(ends)]
        return claims


@functools.lru_cache(maxsize=1)
def _read_text(experiment: SnapFig7) -> Any:
    """The token text, once per process; the settings are the key."""
    from joma.data.corpora import load_corpus
    from joma.data.text import Batches, tokenize, validation_windows

    text = tokenize(load_corpus(experiment.corpus), vocabulary_size=experiment.vocabulary_size)
    Batches(text.training, experiment.batch, experiment.length, experiment.order, experiment.seed)
    validation_windows(text.validation, length=experiment.length, most=experiment.windows)
    if experiment.common >= text.vocabulary_size:
        raise InputError(
            f"snap_fig7: setting common = {experiment.common} leaves none of the {text.vocabulary_size} "
            "tokens uncommon; lower it."
        )
    return text


def _train_one(
    experiment: SnapFig7, depth: int, seed: int, shuffled: bool, progress: Progress
) -> pandas.DataFrame:
    import dataclasses

    import numpy as np

    from joma.models.decoder import Decoder
    from joma.training.evaluation import HeldOutText
    from joma.training.loop import Recipe, reproducible, train

    text = _read_text(experiment)
    name = f"layers-{depth}-seed-{seed}{'-shuffled' if shuffled else ''}"
    if shuffled:
        random = np.random.default_rng([seed, 7])
        text = dataclasses.replace(
            text,
            training=random.permutation(text.training),
            validation=random.permutation(text.validation),
        )
    held_out = HeldOutText(text, length=experiment.length, most_windows=experiment.windows)
    maps = _Maps(text, held_out.inputs, experiment)
    steps = experiment.pictured[-1]
    with reproducible(seed):
        model = Decoder(
            text.vocabulary_size,
            layers=depth,
            width=experiment.width,
            hidden=experiment.hidden,
            dropout=experiment.dropout,
            longest=experiment.length,
        )
        rows = train(
            model,
            text,
            Recipe(
                steps=steps,
                learning_rate=experiment.learning_rate,
                optimizer="sgd",
                clip=experiment.clip,
                batch=experiment.batch,
                length=experiment.length,
                order=experiment.order,
                seed=seed,
            ),
            measure=lambda model, step: held_out.measure(model, step) + maps.measure(model, step),
            measure_at=sorted({*range(0, steps, experiment.measure_every), *experiment.pictured}),
            progress=progress,
            label=f"snap_fig7: {name}",
            checkpoints=progress.checkpoint_folder(name),
        )
    rows = rows[rows["metric"] != "stable_rank"].reset_index(drop=True)
    return rows.assign(
        run=name, depth=depth, seed=seed, text="shuffled" if shuffled else "real", dtype="float32"
    )


class _Maps:
    """What the attention of a decoder looks at in held-out windows, beyond its entropy."""

    def __init__(self, text: Any, windows: Any, experiment: SnapFig7) -> None:
        import numpy as np
        import torch

        length = windows.shape[1]
        self.text, self.windows, self.pictured = text, windows, frozenset(experiment.pictured)
        counts = np.bincount(text.training, minlength=text.vocabulary_size)
        ranked = np.argsort(-counts, kind="stable")
        self.is_common = torch.from_numpy(np.isin(windows.numpy(), ranked[: experiment.common]))
        self.uniform = torch.ones(length, length).tril()
        self.uniform /= self.uniform.sum(1, keepdim=True)

    def measure(self, model: Any, step: int) -> list[dict[str, Any]]:
        """Rows of own-token and common-token attention per layer; of the map at a pictured step."""
        import torch

        seen: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            # one head: drop its axis
            model.hidden_states(self.windows, lambda layer, p: seen.__setitem__(layer, p[:, 0]))
        rows = []
        for layer, attention in sorted(seen.items()):
            common = self._on_common(attention) / self._on_common(self.uniform)
            rows += [
                self._row(step, "own_token", float(attention.diagonal(dim1=1, dim2=2).mean()), layer),
                self._row(step, "common_tokens", common, layer),
            ]
        entropy = -torch.special.xlogy(self.uniform, self.uniform).sum(1).mean()
        rows += [
            self._row(step, "uniform_entropy", float(entropy)),
            self._row(step, "uniform_own_token", float(self.uniform.diagonal().mean())),
        ]
        if step in self.pictured:
            words = [self.text.words[i] for i in self.windows[0].tolist()]
            for query in range(len(words)):
                for key in range(query + 1):
                    rows.append(
                        self._row(step, "attention", float(seen[0][0, query, key]), 0)
                        | {"query": query, "key": key, "query_token": words[query], "key_token": words[key]}
                    )
        return rows

    def _on_common(self, attention: Any) -> float:
        return float((attention * self.is_common[:, None, :]).sum(-1).mean())

    def _row(self, step: int, metric: str, value: float, layer: int | None = None) -> dict[str, Any]:
        unit = MEASURES.get(metric, "")
        return {"step": step, "layer": layer, "head": 0, "metric": metric, "value": value, "unit": unit}


def _starts_and_ends(curves: pandas.DataFrame) -> pandas.DataFrame:
    """One row per run: each measure of the lowest layer at the first and at the last step."""
    wide = curves.pivot_table(index=["run", "depth", "text", "step"], columns="metric", values="value")
    by_run = wide.groupby(["run", "depth", "text"], sort=True)
    first, last = by_run.first(), by_run.last()
    return first.add_suffix("_start").join(last.add_suffix("_end")).reset_index()


def _becomes_sparse(depth: int, ends: pandas.DataFrame) -> Claim:
    from joma.reporting.claims import judge

    real = ends[ends["text"] == "real"]
    fall = real["attention_entropy_start"] - real["attention_entropy_end"]
    start_noise = float((real["uniform_entropy_start"] - real["attention_entropy_start"]).abs().max())
    return judge(
        float(fall.min()) >= max(LEAST_FALL, start_noise),
        id=f"snap_fig7.sparse_{depth}",
        source="Scan&Snap Fig. 7",
        statement=f"Attention in the lowest layer of a {depth}-layer transformer becomes sparse.",
        expected=f"entropy falls by at least {LEAST_FALL} nats in every run, and by more than the null",
        measured=float(fall.min()),
        tolerance=LEAST_FALL,
        null=start_noise,
        null_description="how far untrained attention is from uniform",
        evidence=f"smallest of {len(real)} runs; untrained {real['attention_entropy_start'].mean():.2f}, "
        f"uniform {real['uniform_entropy_end'].mean():.2f}, trained {real['attention_entropy_end'].mean():.2f} nats",
    )


def _because_of_order(depth: int, curves: pandas.DataFrame, steps: list[int]) -> Claim:
    from joma.reporting.claims import judge

    entropy = curves[
        (curves["metric"] == "attention_entropy") & (curves["layer"] == 0) & (curves["depth"] == depth)
    ]
    by_run = entropy[entropy["step"].isin(steps)].pivot(index=["text", "run"], columns="step", values="value")
    falls = by_run.rsub(by_run[steps[0]], axis=0)
    real, null = falls.loc["real"].min(), falls.loc["shuffled"].max()
    pairs = ", ".join(f"step {step}: {real[step]:.2f} and {null[step]:.2f}" for step in steps[1:])
    return judge(
        float(real.iloc[-1]) >= LEAST_FALL + float(null.iloc[-1]),
        id=f"snap_fig7.from_order_{depth}",
        source="what Fig. 7 is shown for (its null is not in the paper)",
        statement=f"It is what tokens have to do with each other that makes attention sparse ({depth} "
        f"layer{'s' if depth > 1 else ''}): without it, attention stays dense.",
        expected=f"at the end, the smallest fall is at least {LEAST_FALL} nats above the null",
        measured=float(real.iloc[-1]),
        tolerance=LEAST_FALL,
        null=float(null.iloc[-1]),
        null_description="fall of the same decoder on the same words in random order",
        evidence=f"smallest fall of the runs and that of the null: {pairs}",
    )


def _keeps_falling(curves: pandas.DataFrame, steps: list[int]) -> Claim:
    from joma.reporting.claims import judge

    entropy = curves[
        (curves["metric"] == "attention_entropy")
        & (curves["layer"] == 0)
        & (curves["text"] == "real")
        & curves["step"].isin(steps)
    ]
    falls = entropy.pivot(index="run", columns="step", values="value").diff(axis=1).iloc[:, 1:]
    share = float((falls < 0).to_numpy().mean())
    return judge(
        share == 1,
        id="snap_fig7.keeps_falling",
        source="Scan&Snap Fig. 7, its pictures one after the other",
        statement="The lowest layer's attention is sparser in each picture than in the one before.",
        expected="entropy lower at each pictured step than at the one before, in every run",
        measured=share,
        null=0.5,
        null_description="a curve that goes up and down at random",
        evidence=f"{falls.size} pairs of pictures; largest rise {falls.to_numpy().max():.3f} nats",
    )


def _common_suppressed(ends: pandas.DataFrame) -> Claim:
    from joma.reporting.claims import judge

    real = ends[ends["text"] == "real"]
    worst = float(real["common_tokens_end"].max())
    null = float(real["common_tokens_start"].min())
    return judge(
        worst < min(0.9, null),
        id="snap_fig7.common_suppressed",
        source="Scan&Snap Thm 2b, asked of Fig. 7's models",
        statement="Common tokens are suppressed: the most frequent ones get less attention than their share.",
        expected="attention to the most frequent tokens below 0.9 of that under uniform attention, and below "
        "that before training, in every run (lowest layer)",
        measured=worst,
        tolerance=0.9,
        null=null,
        null_description="before training",
        evidence=f"largest of {len(real)} runs; mean {real['common_tokens_end'].mean():.2f}; shuffled text "
        f"{ends.loc[ends['text'] == 'shuffled', 'common_tokens_end'].mean():.2f}",
    )


def _on_the_diagonal(ends: pandas.DataFrame) -> Claim:
    from joma.reporting.claims import judge

    real = ends[ends["text"] == "real"]
    own, uniform = float(real["own_token_end"].min()), float(real["uniform_own_token_end"].max())
    return judge(
        own > 2 * uniform,
        id="snap_fig7.own_token",
        source="what Fig. 7's maps may hide (not in the paper)",
        statement="Sparse attention is attention to the own token: it gathers on the map's diagonal.",
        expected="attention to the own token more than twice that of uniform attention, in every run",
        measured=own,
        tolerance=2 * uniform,
        null=float(real["own_token_start"].mean()),
        null_description="before training",
        evidence=f"smallest of {len(real)} runs; uniform attention {uniform:.3f}, shuffled text "
        f"{ends.loc[ends['text'] == 'shuffled', 'own_token_end'].mean():.3f}",
    )

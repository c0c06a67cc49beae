"""Scan&Snap Fig. 7: attention of decoders trained on real text by SGD becomes sparse."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

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
        from joma.experiments.snap_fig7.claims import judge_all

        return judge_all(tables)


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

"""JoMA Table 1: do hidden neurons stand for the latents of a hierarchy, and is that learned?"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joma.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from joma.claim import Claim
    from joma.progress import Progress

CELL = ["classes", "children", "latents_s0", "latents_s1"]


@dataclass(frozen=True, kw_only=True)
class Table1(Experiment):
    """JoMA Table 1: normalised correlation (NCorr) of each latent with its best neuron of the same layer.

    A class fixes a set of latents at s = 1, each a set of latents at s = 0, each a set of tokens
    (:mod:`joma.data.hierarchy`); a three-layer network learns to tell the class. The MLP neurons of layer
    s (maximum over positions) are correlated with the latents of level s, over the C sequences, at
    chosen steps. Step 0 is the untrained network: the null that the paper does not show. Beside the plain
    reading (each class once, largest correlation, best match, latents that no class uses left out) every
    other reading of the paper's sentence is recorded (:mod:`joma.experiments.table1.readings`), and the
    mean over shuffles of the classes.

    ``paper`` is the paper's own scale: 12 cells, 5 seeds, d = 1024, 10,000 steps at learning rate 1e-5 (the
    authors' table script selects 1e-4); ``cell`` is one cell of it with one seed; ``reduced`` all 12 cells
    with 5 seeds, but d = 256 and few steps. Not said in the paper, and chosen: one head, no causal mask,
    the order of the tokens that of the tree.
    """

    title = "hidden neurons against the latents of a hierarchy, trained and untrained"
    reproduces = "JoMA Table 1"
    cost = {"quick": "1 min", "reduced": "20 min", "cell": "30 min", "paper": "days"}
    presets = {
        "quick": {},
        "reduced": {
            "classes": (20, 30, 50),
            "children": (2, 3),
            "seeds": 5,
            "width": 256,
            "steps": 300,
            "measure_every": 100,
        },
        "cell": {
            "bottom_latents": (10,),
            "top_latents": (20,),
            "seeds": 1,
            "width": 1024,
            "steps": 10_000,
            "learning_rate": 1e-5,
            "measure_every": 200,
        },
        "paper": {
            "classes": (20, 30, 50),
            "children": (2, 3),
            "seeds": 5,
            "width": 1024,
            "steps": 10_000,
            "learning_rate": 1e-5,
            "measure_every": 500,
        },
    }

    classes: tuple[int, ...] = setting((20,), "numbers of classes C", at_least=2)
    children: tuple[int, ...] = setting((2,), "members of each latent N_ch", at_least=1)
    bottom_latents: tuple[int, ...] = setting(
        (10, 20), "N_0, one for each pair (N_0, N_1)", at_least=1, repeats=True
    )
    top_latents: tuple[int, ...] = setting(
        (20, 30), "N_1, one for each pair (N_0, N_1)", at_least=1, repeats=True
    )
    seeds: int = setting(3, "runs per cell, with seeds seed, seed + 1, ...", at_least=1)
    width: int = setting(128, "embedding size d", at_least=1)
    heads: int = setting(1, "attention heads", at_least=1)
    causal: bool = setting(False, "mask later positions")
    vocabulary_size: int = setting(100, "tokens M; the MLP has 4 M neurons", at_least=1)
    length: int = setting(30, "positions L of a padded sequence", at_least=1)
    steps: int = setting(200, "minibatches", at_least=1)
    learning_rate: float = setting(1e-4, "Adam's learning rate", above=0)
    weight_decay: float = setting(1e-4, "Adam's weight decay (added to the gradient)", at_least=0)
    batch: int = setting(128, "sequences in a minibatch", at_least=1)
    measure_every: int = setting(50, "steps between measurements", at_least=1)
    permutations: int = setting(50, "shuffles of the classes for the null", at_least=1)
    test: int = setting(1000, "sequences of a test set, for that reading", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.bottom_latents) != len(self.top_latents) or not (
            self.bottom_latents and self.classes and self.children
        ):
            raise InputError(
                f"table1: bottom_latents = {self.bottom_latents}, top_latents = {self.top_latents}, "
                f"classes = {self.classes}, children = {self.children}; give as many N_0 as N_1, none empty."
            )

    def cells(self) -> list[tuple[int, int, int, int]]:
        """(C, N_ch, N_0, N_1) of every cell."""
        pairs = list(zip(self.bottom_latents, self.top_latents, strict=True))
        return [(c, n, low, high) for c in self.classes for n in self.children for low, high in pairs]

    def run(self, progress: Progress) -> dict[str, pandas.DataFrame]:
        """Tables ``alignment``, ``cells`` (means over seeds), ``readings``, ``readings_along``, ``paper``."""
        import pandas as pd

        from joma.experiments.table1.paper import paper_table
        from joma.experiments.table1.readings import COLUMNS, summary

        runs: dict[str, Any] = {}
        seeds = tuple(range(self.seed, self.seed + self.seeds))
        for some in [seeds, *((seed,) for seed in seeds)]:
            for cell in self.cells():
                if self._pays_together(cell) != (some == seeds) and len(seeds) > 1:
                    continue
                for seed in some:
                    _hierarchy(self, cell, seed)  # a cell that cannot be drawn is an error before training
                name = _cell_name(cell) + "-seed-" + "-".join(map(str, sorted({some[0], some[-1]})))
                runs[name] = functools.partial(_train, self, cell, some, name)
        tables = progress.parts(runs)
        everything = pd.concat([tables[name] for name in runs], ignore_index=True)
        is_reading = everything["level"].notna()
        alignment = everything[~is_reading].drop(columns=COLUMNS).reset_index(drop=True)
        along = everything[is_reading].infer_objects().reset_index(drop=True)
        ends = alignment[alignment["step"].isin([0, self.steps])]
        cells = (
            ends.groupby([*CELL, "step", "layer", "metric", "unit"], dropna=False)["value"]
            .agg(value="mean", deviation="std", seeds="count")
            .reset_index()
        )
        paper = paper_table()
        return {
            "alignment": alignment,
            "cells": cells,
            "readings": summary(along, CELL, self.steps, paper),
            "readings_along": along,
            "paper": paper,
        }

    def draw(self, tables: Mapping[str, pandas.DataFrame]) -> Figure:
        """NCorr along training for each level, and at its ends beside the nulls and the paper."""
        from joma.experiments.table1.readings import plain
        from joma.reporting.figures import PALETTE, ink, panels

        alignment, paper, along = tables["alignment"], tables["paper"], tables["readings_along"]
        absolute = along[plain(along, sign="absolute")]
        figure, axes = panels(1, 2, width=5.0, height=3.6, sharey=True)
        for axis, layer in zip(axes[0], (0, 1), strict=True):
            part = alignment[(alignment["layer"] == layer) & alignment["metric"].isin(["NCorr", "shuffled"])]
            for colour, (cell, of_cell) in zip(PALETTE * 9, part.groupby(CELL), strict=False):
                curves = of_cell.pivot_table(index="step", columns=["metric", "seed"], values="value")
                axis.plot(curves["NCorr"], color=colour, lw=0.7, alpha=0.4)
                label = f"C={cell[0]}, {cell[1]} children, {cell[2:]}"
                axis.plot(curves["NCorr"].mean(axis=1), color=colour, label=label)
                axis.plot(curves["shuffled"].mean(axis=1), color=colour, ls=":", lw=1.1)
                either = absolute[(absolute["layer"] == layer) & (absolute[CELL] == list(cell)).all(axis=1)]
                axis.plot(either.groupby("step")["value"].mean(), color=colour, ls="--", lw=1.1)
                theirs = paper[(paper["layer"] == layer) & (paper[CELL] == list(cell)).all(axis=1)]
                axis.errorbar(
                    [self.steps * 1.02] * len(theirs),
                    theirs["value"],
                    theirs["deviation"],
                    fmt="o",
                    ms=4,
                    mfc="none",
                    color=colour,
                )
            axis.plot([], [], "--", color=ink(), label="largest absolute correlation")
            axis.plot([], [], ":", color=ink(), label="classes shuffled")
            axis.set_title(f"layer {layer} against the latents of s = {layer}")
            axis.set_xlabel("minibatch (0: untrained)")
            axis.set_ylim(0, 1.03)
        axes[0, 0].set_ylabel("NCorr (mean over latents)")
        axes[0, 0].legend(loc="lower left", fontsize=7.5)
        figure.suptitle(
            f"d = {self.width}, learning rate {self.learning_rate:g}, "
            + ("one seed" if self.seeds == 1 else f"{self.seeds} seeds (thin), mean (thick)")
            + ("; circles: the paper at d = 1024, 10,000 steps" if len(paper) else ""),
            fontsize=9.5,
        )
        return figure

    def claims(self, tables: Mapping[str, pandas.DataFrame]) -> list[Claim]:
        """What Table 1 and its text say, each beside the untrained network."""
        from joma.experiments.table1 import claims as judged

        ends = judged.Ends(tables["alignment"], self.steps)
        return [
            judged.bottom_high(ends),
            judged.learned(ends, 0),
            judged.learned(ends, 1),
            judged.bottom_above_top(ends),
            judged.above_shuffled(ends),
            judged.falls_when_complex(ends),
            judged.peaks_early(tables["alignment"]),
            judged.agrees_with_paper(ends, tables["paper"], full_scale=self._is_full_scale()),
            judged.some_reading_agrees(tables["readings"], full_scale=self._is_full_scale()),
        ]

    def _pays_together(self, cell: tuple[int, int, int, int]) -> bool:
        """Whether all seeds train in one process: measured on a CPU core (benchmarks/bench_table1.py)."""
        positions = cell[1] ** 3 + 1
        return self.width <= 128 and cell[0] * positions <= 300

    def _is_full_scale(self) -> bool:
        return self.width == 1024 and self.steps >= 10_000


def _hierarchy(experiment: Table1, cell: tuple[int, int, int, int], seed: int) -> Any:
    import numpy as np

    from joma.data.hierarchy import draw_hierarchy

    classes, children, bottom, top = cell
    return draw_hierarchy(
        classes=classes,
        latents=(bottom, top),
        children=children,
        vocabulary_size=experiment.vocabulary_size,
        length=experiment.length,
        random=np.random.default_rng([seed, *cell]),
    )


def _cell_name(cell: tuple[int, int, int, int]) -> str:
    return "classes-{}-children-{}-latents-{}-{}".format(*cell)


def _train(
    experiment: Table1, cell: tuple[int, int, int, int], seeds: tuple[int, ...], name: str, progress: Progress
) -> pandas.DataFrame:
    """Train the networks of some seeds of a cell: together, if there are several."""
    import torch

    from joma.experiments.table1.readings import COLUMNS, Measurement
    from joma.models.hierarchy import HierarchyNetwork
    from joma.training.distinct import DistinctRecipe, train_distinct, train_together
    from joma.training.loop import reproducible

    measurements, networks = [], []
    for seed in seeds:
        drawn = _hierarchy(experiment, cell, seed)
        measurements.append(
            Measurement(
                drawn=drawn,
                tokens=torch.from_numpy(drawn.sequences()),
                batch=experiment.batch,
                test=experiment.test,
                permutations=experiment.permutations,
            )
        )
        with reproducible(seed):
            networks.append(
                HierarchyNetwork(
                    experiment.vocabulary_size,
                    cell[0],
                    layers=3,
                    width=experiment.width,
                    heads=experiment.heads,
                    causal=experiment.causal,
                )
            )
    recipe = DistinctRecipe(
        steps=experiment.steps,
        learning_rate=experiment.learning_rate,
        weight_decay=experiment.weight_decay,
        batch=experiment.batch,
        seed=seeds[0],
    )

    def measure(number: int, network: HierarchyNetwork, step: int) -> list[dict[str, Any]]:
        return [row | {"seed": seeds[number]} for row in measurements[number](network, step)]

    where: dict[str, Any] = {
        "measure_at": frozenset({*range(0, experiment.steps, experiment.measure_every), experiment.steps}),
        "progress": progress,
        "label": f"table1: {name}",
        "checkpoints": progress.checkpoint_folder(name),
    }

    tokens, padding = [m.tokens for m in measurements], experiment.vocabulary_size
    with reproducible(seeds[0]):
        if len(seeds) == 1:
            alone = functools.partial(measure, 0)
            rows = train_distinct(networks[0], tokens[0], padding, recipe, measure=alone, **where)
        else:
            rows = train_together(networks, tokens, padding, recipe, seeds, measure=measure, **where)
    identity = dict(zip(CELL, cell, strict=True))
    columns = ["run", *CELL, "seed", "step", "layer", *COLUMNS, "metric", "value", "unit", "dtype"]
    run = _cell_name(cell) + "-seed-" + rows["seed"].astype(str)
    return rows.assign(run=run, dtype="float32", **identity)[columns]

"""Networks trained on every cell and seed, measured in every reading along training."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import torch

from joma.core.progress import Progress
from joma.data.hierarchy import Hierarchy, draw_hierarchy
from joma.experiments.joma_paper.table1 import CELL, Table1
from joma.experiments.joma_paper.table1.paper import paper_table
from joma.experiments.joma_paper.table1.readings import COLUMNS, Measurement, summary
from joma.models.hierarchy import HierarchyNetwork
from joma.training.distinct import DistinctRecipe, train_distinct, train_together
from joma.training.loop import Rows, reproducible


def run(settings: Table1, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``alignment``, ``cells`` (means over seeds), ``readings``, ``readings_along``, ``paper``."""
    runs: dict[str, functools.partial[pd.DataFrame]] = {}
    seeds = tuple(range(settings.seed, settings.seed + settings.seeds))
    for some in [seeds, *((seed,) for seed in seeds)]:
        for cell in settings.trainings():
            if pays_together(settings, cell) != (some == seeds) and len(seeds) > 1:
                continue
            for seed in some:
                _hierarchy(settings, cell, seed)  # a cell that cannot be drawn is an error before training
            name = _cell_name(cell) + "-seed-" + "-".join(map(str, sorted({some[0], some[-1]})))
            runs[name] = functools.partial(_train, settings, cell, some, name)
    tables = progress.parts(runs)
    everything = pd.concat([tables[name] for name in runs], ignore_index=True)
    is_reading = everything["level"].notna()
    alignment = everything[~is_reading].drop(columns=COLUMNS).reset_index(drop=True)
    along = everything[is_reading].infer_objects().reset_index(drop=True)
    ends = alignment[alignment["step"].isin([0, settings.steps])]
    cells = (
        ends.groupby([*CELL, "step", "layer", "metric", "unit"], dropna=False)["value"]
        .agg(value="mean", deviation="std", seeds="count")
        .reset_index()
    )
    paper = paper_table()
    return {
        "alignment": alignment,
        "cells": cells,
        "readings": summary(along, CELL, settings.steps, paper),
        "readings_along": along,
        "paper": paper,
    }


def pays_together(settings: Table1, cell: tuple[int, int, int, int]) -> bool:
    """Whether all seeds train in one process: measured on a CPU core (benchmarks/bench_table1.py)."""
    positions = cell[1] ** 3 + 1
    return settings.width <= 128 and cell[0] * positions <= 300


def _hierarchy(settings: Table1, cell: tuple[int, int, int, int], seed: int) -> Hierarchy:
    classes, children, bottom, top = cell
    return draw_hierarchy(
        classes=classes,
        latents=(bottom, top),
        children=children,
        vocabulary_size=settings.vocabulary_size,
        length=settings.length,
        random=np.random.default_rng([seed, *cell]),
    )


def _cell_name(cell: tuple[int, int, int, int]) -> str:
    return "classes-{}-children-{}-latents-{}-{}".format(*cell)


def _train(
    settings: Table1, cell: tuple[int, int, int, int], seeds: tuple[int, ...], name: str, progress: Progress
) -> pd.DataFrame:
    """Train the networks of some seeds of a cell: together, if there are several."""
    measurements, networks = [], []
    for seed in seeds:
        drawn = _hierarchy(settings, cell, seed)
        measurements.append(
            Measurement(
                drawn=drawn,
                tokens=torch.from_numpy(drawn.sequences()),
                batch=settings.batch,
                test=settings.test,
                permutations=settings.permutations,
            )
        )
        with reproducible(seed):
            networks.append(
                HierarchyNetwork(
                    settings.vocabulary_size,
                    cell[0],
                    layers=3,
                    width=settings.width,
                    heads=settings.heads,
                    causal=settings.causal,
                )
            )
    recipe = DistinctRecipe(
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        batch=settings.batch,
        seed=seeds[0],
    )

    def measure(number: int, network: HierarchyNetwork, step: int) -> Rows:
        return [row | {"seed": seeds[number]} for row in measurements[number](network, step)]

    at = frozenset({*range(0, settings.steps, settings.measure_every), settings.steps})
    tokens, padding = [m.tokens for m in measurements], settings.vocabulary_size
    label, folder = f"table1: {name}", progress.checkpoint_folder(name)
    with reproducible(seeds[0]):
        if len(seeds) == 1:
            rows = train_distinct(
                networks[0],
                tokens[0],
                padding,
                recipe,
                measure=functools.partial(measure, 0),
                measure_at=at,
                progress=progress,
                label=label,
                checkpoints=folder,
            )
        else:
            rows = train_together(
                networks,
                tokens,
                padding,
                recipe,
                seeds,
                measure=measure,
                measure_at=at,
                progress=progress,
                label=label,
                checkpoints=folder,
            )
    identity = dict(zip(CELL, cell, strict=True))
    columns = ["run", *CELL, "seed", "step", "layer", *COLUMNS, "metric", "value", "unit", "dtype"]
    run = _cell_name(cell) + "-seed-" + rows["seed"].astype(str)
    return rows.assign(run=run, dtype="float32", **identity)[columns]

"""Every branch of every seed, and the differences from the twins."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from scipy.stats import t as student

from joma.core.progress import Progress
from joma.instruments.branch import TWIN, BranchSettings
from joma.instruments.branch.claims import same_for_all_seeds
from joma.instruments.branch.interventions import Intervention
from joma.instruments.branch.training import Make, State, Step, Trainer, check_repeatable

_LEVEL = 0.95


def measure_branches(
    settings: BranchSettings, make: Make, step: Step, chosen: list[Intervention], progress: Progress
) -> dict[str, pd.DataFrame]:
    """The tables of ``BranchResult``; a part for each seed, and in it one for each of its branches."""
    _check(settings, make, step, chosen)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    parts = progress.parts(
        {f"seed-{seed}": partial(_one_seed, settings, make, step, chosen, seed) for seed in seeds}
    )
    curves = pd.concat([parts[f"seed-{seed}"] for seed in seeds], ignore_index=True)
    return {"differences": _differences(curves), "curves": curves}


def _one_seed(
    settings: BranchSettings,
    make: Make,
    step: Step,
    chosen: list[Intervention],
    seed: int,
    progress: Progress,
) -> pd.DataFrame:
    training = Trainer(make, step, seed)
    trunk: list[State] = []
    ways: list[tuple[str, int, Intervention | None]] = [
        *((TWIN, order, None) for order in range(settings.orders + 1)),
        *((one.name, 0, one) for one in chosen),
    ]

    def compute(way: Intervention | None, order: int) -> pd.DataFrame:
        if not trunk:  # no earlier try finished this branch
            earlier = {one.to for one in chosen if one.act == "rewind"}
            trunk.append(training.trunk(settings.at, earlier))
        return training.branch(trunk[0], settings.at, settings.steps, way, order)

    parts = []
    for name, order, way in progress.track(ways, f"branch: seed {seed}"):
        label = f"seed-{seed}-twin-{order}" if way is None else f"seed-{seed}-of-{name.replace(' ', '_')}"
        table = progress.part(label, partial(compute, way, order))
        parts.append(table.assign(run=seed, branch=name, order=order))
    return pd.concat(parts, ignore_index=True)[["run", "branch", "order", "step", "metric", "value"]]


def _check(settings: BranchSettings, make: Make, step: Step, chosen: list[Intervention]) -> None:
    """What can be said before anything is trained."""
    model, _, batches = Trainer(make, step, settings.seed).start()
    check_repeatable(batches, settings.at)
    for one in chosen:
        one.parts(model)
        if one.batches is not None:
            check_repeatable(one.batches, settings.at)


def _differences(curves: pd.DataFrame) -> pd.DataFrame:
    keys = ["run", "step", "metric"]
    is_twin = curves["branch"] == TWIN
    twin = curves[is_twin & (curves["order"] == 0)].set_index(keys)["value"]
    others = curves[~(is_twin & (curves["order"] == 0))].copy()
    others["gap"] = others["value"] - twin.reindex(pd.MultiIndex.from_frame(others[keys])).to_numpy()
    orders = others[others["branch"] == TWIN]
    spread = orders.groupby(["metric", "step"])["gap"].agg(lambda gap: float((gap**2).mean() ** 0.5))
    changed = others[others["branch"] != TWIN].groupby(["branch", "metric", "step"], sort=False)["gap"]
    found = changed.agg(value="mean", deviation="std", seeds="count").reset_index()
    half = student.ppf(0.5 + _LEVEL / 2, (found["seeds"] - 1).clip(lower=1)) * found["deviation"]
    half = half / found["seeds"] ** 0.5  # NaN of one seed
    if same_for_all_seeds(curves):
        half = half * np.nan
    found["low"], found["high"] = found["value"] - half, found["value"] + half
    places = pd.MultiIndex.from_frame(found[["metric", "step"]])
    found["twin_spread"] = spread.reindex(places).to_numpy(dtype=float)
    return found.drop(columns="deviation")

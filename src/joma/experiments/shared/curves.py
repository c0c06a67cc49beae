"""The curves of Fig. 6 and Fig. 8: decoders trained and measured, and the dip and rebound of each curve."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.shared.curve_settings import TOGETHER, CurveSettings
from joma.experiments.shared.decoders import held_out_text, read_text, train_decoder
from joma.measures.bounce import Bounce, bounce
from joma.models.decoder import Decoder
from joma.training.loop import Rows

MEASURED = ("attention_entropy", "stable_rank", "stable_rank_of_change")
"""Whose dips and rebounds are sought."""
FEWEST_POINTS = 8
"""Of a curve, to tell a dip from noise."""
_FEW_STEPS = 12
REAL = "real"
"""The variant of a run as the paper trains it; the others are nulls."""
SETTING = ["depth", "learning_rate", "variant"]
"""The columns that say which runs differ in their seeds alone."""
COLUMNS = ["run", "seed", *SETTING, "step", "layer", "head", "metric", "value", "unit", "dtype"]


def train_curves(
    settings: CurveSettings,
    progress: Progress,
    *,
    name: str,
    variant: str = REAL,
    also: Callable[[Decoder, int], Rows] | None = None,
    prepare: Callable[[Decoder], None] | None = None,
    shuffled: bool = False,
) -> pd.DataFrame:
    """One cell's decoder, measured along its training.

    Args:
        settings: of a cell: one depth, one seed.
        progress: bar, and place of the checkpoints.
        name: what is said of the run behind its depth and seed.
        variant: ``REAL``, or which null it is.
        also: what else is measured, at each measured step.
        prepare: what is done to the decoder before it is trained.
        shuffled: whether it reads the words in random order.
    """
    text = read_text(settings)
    if shuffled:
        text = text.shuffle(settings.seed)
    held_out = held_out_text(settings, text)

    def measure(model: Decoder, step: int) -> Rows:
        return held_out.measure(model, step) + ([] if also is None else also(model, step))

    rows = train_decoder(
        settings,
        settings.depth,
        settings.seed,
        progress,
        text=text,
        measure=measure,
        prepare=prepare,
        variant=name,
    )
    return rows.assign(learning_rate=settings.rate, variant=variant, dtype=settings.precision)[COLUMNS]


def cost_of(settings: CurveSettings, also: Callable[[Decoder, int], Rows] | None = None) -> float:
    """Seconds that a cell takes, by a few steps and measurements of it."""
    begun: list[float] = []
    ended: list[float] = []
    text = read_text(settings)
    held_out = held_out_text(settings, text)

    def measure(model: Decoder, step: int) -> Rows:
        begun.append(time.perf_counter())
        held_out.measure(model, step)
        if also is not None:
            also(model, step)
        ended.append(time.perf_counter())
        return []

    few = dataclasses.replace(settings, steps=_FEW_STEPS, measure_every=1)
    train_decoder(
        few,
        few.depth,
        few.seed,
        Progress(quiet=True),
        text=text,
        measure=measure,
    )
    step = float(np.median(np.subtract(begun[1:], ended[:-1])))
    measurement = float(np.median(np.subtract(ended, begun)))
    return settings.steps * step + len(settings.measured_steps()) * measurement


def find_bounces(curves: pd.DataFrame, every: int, *, pooled: bool) -> pd.DataFrame:
    """One row per run, layer and metric (entropy averaged over heads): dip, rebound, their nulls, which are
    those of all seeds of a setting together where there are enough. With ``pooled``, for fewer seeds, the top
    layers of all depths of a learning rate are judged together: a mean rise needs one that rises. (Decoders
    of one seed read the same windows; what they share of the noise is not accounted for.)

    Dip and rebound are sought among evenly spaced measurements. Where an early transient was sampled
    more densely, it would count as noise of the whole curve; it is sought among all measurements.
    """
    rows = []
    of_layers = curves[curves["metric"].isin(MEASURED)]
    even_steps = of_layers[of_layers["step"] % every == 0]
    if pooled:
        even_steps = even_steps[even_steps["layer"] == even_steps["depth"] - 1]
    keys = (
        [name for name in SETTING if not (pooled and name == "depth")] + ["metric"] + ["layer"] * (not pooled)
    )
    together = _judge_together(even_steps, keys)
    for (run, metric, layer), part in of_layers.groupby(["run", "metric", "layer"], sort=True):
        curve = part.groupby("step")["value"].mean()
        even = curve[curve.index % every == 0]
        found = bounce(even.index.to_numpy(), even.to_numpy())
        dense = bounce(curve.index.to_numpy(), curve.to_numpy(), resamples=1)
        first_row = part.iloc[0]
        is_top = first_row["layer"] == first_row["depth"] - 1
        chance = together.get(tuple(first_row[keys]), found) if is_top or not pooled else found
        first = next((dip for dip in dense.transients if dip.step < found.main.step), None)
        rows.append(
            {
                "run": run,
                "seed": first_row["seed"],
                **first_row[SETTING],
                "layer": int(layer),
                "metric": metric,
                "start": curve.iloc[0],
                "end": curve.iloc[-1],
                "dip_step": found.main.step,
                "dip_value": found.main.value,
                "depth_of_dip": found.main.depth,
                "dip_null": chance.dip_null,
                "dip_probability": chance.dip_probability,
                "rebound": found.main.rebound,
                "rebound_step": found.main.rebound_step,
                "rebound_null": chance.rebound_null,
                "rebound_probability": chance.rebound_probability,
                "cannot_tell": chance.cannot_tell,
                "noise": found.noise,
                "noise_of_all": dense.noise,
                "transient_step": first.step if first else None,
                "transient_depth": first.depth if first else None,
                "transient_rebound": first.rebound if first else None,
            }
        )
    return pd.DataFrame(rows)


def _judge_together(curves: pd.DataFrame, keys: list[str]) -> dict[tuple[Hashable, ...], Bounce]:
    """Values of the keys -> dip and rebound of all runs together, where there are enough of one length."""
    found: dict[tuple[Hashable, ...], Bounce] = {}
    for key, part in curves.groupby(keys, sort=False):
        by_run = part.groupby(["run", "step"])["value"].mean().unstack("step").dropna(axis=1)
        if len(by_run) >= TOGETHER and by_run.shape[1] >= FEWEST_POINTS:
            found[tuple(key)] = bounce(by_run.columns.to_numpy(), by_run.to_numpy())
    return found


def answer_about(curves: pd.DataFrame, cells: int, grid: str) -> str:
    """How much of a grid was run: a sentence for a report.

    Args:
        curves: of all runs.
        cells: how many runs were asked for.
        grid: what the paper's figure has.
    """
    runs = curves.loc[curves["variant"] == REAL, ["run", "seed", "depth", "learning_rate"]].drop_duplicates()
    depths = ", ".join(f"{depth}" for depth in sorted(runs["depth"].unique()))
    rates = ", ".join(f"{rate:g}" for rate in sorted(runs["learning_rate"].unique()))
    return (
        f"It stands on {len(runs)} of {cells} runs (layers {depths}; learning rates {rates}; "
        f"{runs['seed'].nunique()} seeds); the paper's figure has {grid}."
    )

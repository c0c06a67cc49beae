"""Training at every depth and seed, and the dips and rebounds of each curve."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import pandas as pd

from joma.experiments.decoder_settings import run_name
from joma.experiments.decoders import gathered, held_out_text, read_text, train_decoder
from joma.experiments.fig6 import TOGETHER, Fig6
from joma.experiments.fig6.block import block_rates
from joma.measures.bounce import Bounce, bounce
from joma.models.decoder import Decoder
from joma.progress import Progress
from joma.training.loop import Rows


def run(settings: Fig6, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``curves`` (every measurement) and ``bounces`` (dip and rebound of each curve)."""
    read_text(settings)
    runs = {run_name(*cell): partial(_train_one, settings, *cell) for cell in settings.cells()}
    curves = gathered(progress.parts(runs))
    return {"curves": curves, "bounces": _find_bounces(curves, settings.measure_every)}


def _train_one(settings: Fig6, depth: int, seed: int, progress: Progress) -> pd.DataFrame:
    text = read_text(settings)
    held_out = held_out_text(settings, text)

    def measure(model: Decoder, step: int) -> Rows:
        last = step == settings.steps
        return [
            *held_out.measure(model, step),
            *block_rates(model, held_out.inputs, step, law=last, seed=settings.seed),
        ]

    rows = train_decoder(settings, depth, seed, progress, text=text, measure=measure)
    return rows.assign(dtype="float32")[
        ["run", "depth", "seed", "step", "layer", "head", "metric", "value", "unit", "dtype"]
    ]


def _find_bounces(curves: pd.DataFrame, every: int) -> pd.DataFrame:
    """One row per run, layer and metric (entropy averaged over heads): dip, rebound, their nulls, which are
    those of all seeds together where there are enough.

    Dip and rebound are sought among evenly spaced measurements. Where an early transient was sampled
    more densely, it would count as noise of the whole curve; it is sought among all measurements.
    """
    rows = []
    of_layers = curves[curves["metric"].isin(["attention_entropy", "stable_rank"])]
    together = _together(of_layers[of_layers["step"] % every == 0])
    for (run, metric, layer), part in of_layers.groupby(["run", "metric", "layer"], sort=True):
        curve = part.groupby("step")["value"].mean()
        even = curve[curve.index % every == 0]
        found = bounce(even.index.to_numpy(), even.to_numpy())
        dense = bounce(curve.index.to_numpy(), curve.to_numpy(), resamples=1)
        chance = together.get((part["depth"].iloc[0], metric, layer), found)
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


def _together(curves: pd.DataFrame) -> dict[tuple[Hashable, ...], Bounce]:
    """(depth, metric, layer) -> dip and rebound of all seeds together, where there are seeds enough."""
    found: dict[tuple[Hashable, ...], Bounce] = {}
    for key, part in curves.groupby(["depth", "metric", "layer"], sort=False):
        by_seed = part.groupby(["seed", "step"])["value"].mean().unstack("step")
        if len(by_seed) >= TOGETHER:
            found[tuple(key)] = bounce(by_seed.columns.to_numpy(), by_seed.to_numpy())
    return found

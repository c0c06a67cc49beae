"""Untouched runs, their dips, and the same runs with attention stopped there or at another step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from joma.core.progress import Progress
from joma.experiments.beyond.bounce_helps import TIMES, WAYS, BounceHelps
from joma.experiments.beyond.bounce_helps.freezing import stop_attention
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, held_out_text, read_text, train_decoder
from joma.measures.bounce import bounce, smooth
from joma.models.decoder import Decoder
from joma.training.loop import Rows


def run(settings: BounceHelps, progress: Progress) -> dict[str, pd.DataFrame]:
    """Untouched runs first; then, where their dips are known, the stopped ones."""
    read_text(settings)
    cells = settings.trainings()
    untouched = progress.parts(
        {run_name(*cell): partial(_train_one, settings, *cell, "", "", 0) for cell in cells}
    )
    bounces = _bounces(settings, gather(untouched))
    stopped = {
        run_name(row.depth, row.seed, f"{way}-{when}"): partial(
            _train_one, settings, row.depth, row.seed, way, when, int(step)
        )
        for row in bounces.itertuples()
        for way in WAYS
        for when, step in zip(TIMES, (row.dip_step, row.earlier_step, row.later_step), strict=True)
        if step == step  # none where the dip is too near an end
    }
    curves = gather(untouched | progress.parts(stopped))
    return {"curves": curves, "costs": _costs(curves), "bounces": bounces}


def _train_one(
    settings: BounceHelps, depth: int, seed: int, way: str, when: str, stop: int, progress: Progress
) -> pd.DataFrame:
    """One run; with a ``way``, attention is stopped at step ``stop``, just after it was measured there."""
    text = read_text(settings)
    held_out = held_out_text(settings, text)

    def measure(model: Decoder, step: int) -> Rows:
        rows = held_out.measure(model, step)
        if way and step == stop:
            entropies: dict[int, list[float]] = {}
            for row in rows:
                if row["metric"] == "attention_entropy":
                    entropies.setdefault(row["layer"], []).append(row["value"])
            stop_attention(model, way, entropies)
        return rows

    variant = f"{way}-{when}" if way else ""
    rows = train_decoder(
        settings,
        depth,
        seed,
        progress,
        text=text,
        measure=measure,
        variant=variant,
        # A stopped model has other parts than the one a checkpoint would be loaded into.
        resumable=not way,
    )
    columns = ["run", "depth", "seed", "way", "when", "stop", "step", "layer", "head", "metric", "value"]
    return rows.assign(way=way, when=when, stop=stop)[[*columns, "unit"]]


def _bounces(settings: BounceHelps, curves: pd.DataFrame) -> pd.DataFrame:
    """Each run's dip of the top layer's entropy, and two other steps as far from it on either side.

    Whether the rebound is more than noise is judged of all seeds of a depth together.
    """
    top = curves[(curves["metric"] == "attention_entropy") & (curves["layer"] == curves["depth"] - 1)]
    allowed = np.array(settings.stopping_steps())
    apart = max(2 * settings.measure_every, 0.1 * settings.steps)
    rows = []
    for depth, of_depth in top.groupby("depth", sort=False):
        by_seed = of_depth.groupby(["seed", "step"])["value"].mean().unstack("step")
        found = bounce(by_seed.columns.to_numpy(), by_seed.to_numpy())
        for seed, curve in by_seed.iterrows():
            level = pd.Series(smooth(curve.to_numpy(), 3), index=curve.index)
            dip = int(level[allowed].idxmin())
            away = [s - dip for s in allowed if s - dip >= apart and 2 * dip - s in allowed]
            chosen = np.random.default_rng([seed, depth]).choice(away) if away else np.nan
            rows.append(
                {
                    "run": run_name(depth, seed),
                    "depth": depth,
                    "seed": seed,
                    "dip_step": dip,
                    "dip_value": level[dip],
                    "rebound": level.loc[dip:].max() - level[dip],
                    "rebound_null": found.rebound_null,
                    "rebound_probability": found.rebound_probability,
                    "earlier_step": dip - chosen,
                    "later_step": dip + chosen,
                }
            )
    return pd.DataFrame(rows)


def _costs(curves: pd.DataFrame) -> pd.DataFrame:
    """Held-out loss of each stopped run minus the untouched one's, over the last tenth of the steps."""
    loss = curves[curves["metric"] == "validation_loss"]
    late = loss[loss["step"] >= 0.9 * loss["step"].max()]
    keys = ["depth", "seed", "way", "when", "stop"]
    ends = late.groupby(keys)["value"].mean().reset_index()
    plain = ends[ends["way"] == ""].set_index(["depth", "seed"])["value"]
    costs = ends[ends["way"] != ""].reset_index(drop=True)
    before = plain.loc[list(zip(costs["depth"], costs["seed"], strict=True))].to_numpy()
    return costs.assign(untouched=before, cost=costs["value"] - before, unit="nats")

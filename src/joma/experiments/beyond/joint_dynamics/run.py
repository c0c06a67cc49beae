"""The block flow and the decoders, and where the sign of the index turns."""

from __future__ import annotations

from functools import partial

import pandas as pd
import torch

from joma.core.progress import Progress
from joma.data.text import TokenText, validation_windows
from joma.experiments.beyond.joint_dynamics import JointDynamics
from joma.experiments.beyond.joint_dynamics.block import block_flows
from joma.experiments.beyond.joint_dynamics.tables import of_layers
from joma.experiments.shared.decoder_settings import run_name
from joma.experiments.shared.decoders import gather, read_text, train_decoder
from joma.instruments.probe.sections.joint_dynamics import joint_dynamics
from joma.models.decoder import Decoder
from joma.training.loop import Rows


def run(settings: JointDynamics, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``block`` (the flow), ``curves`` (decoders), ``turns`` (where a sign turns)."""
    read_text(settings)
    runs = {run_name(*one): partial(_train_one, settings, *one) for one in settings.trainings()}
    curves = gather(progress.parts(runs))
    return {"block": block_flows(settings), "curves": curves, "turns": _turns(curves)}


def _train_one(settings: JointDynamics, depth: int, seed: int, progress: Progress) -> pd.DataFrame:
    text = read_text(settings)
    measure = partial(_measure, settings, text)
    return train_decoder(settings, depth, seed, progress, text=text, measure=measure)


def _measure(settings: JointDynamics, text: TokenText, model: Decoder, step: int) -> Rows:
    """The index of every layer and head, and of the mean over heads (head missing)."""
    inputs, _ = validation_windows(text.validation, length=settings.length, most=settings.windows)
    batches = [(part, torch.ones_like(part, dtype=torch.bool)) for part in torch.split(inputs, 50)]
    found = joint_dynamics(
        model, batches, draws=settings.draws, rank_every=0, seed=settings.seed + 7919 * step
    )
    whole = found[found["position"].isna()]
    kept = ["layer", "head", "metric", "scale", "given", "sink", "value", "standard_error", "count", "dtype"]
    rows: Rows = []
    for row in whole[kept].to_dict("records"):
        head = None if row["head"] is None or row["head"] != row["head"] else row["head"]
        rows.append(
            {
                "step": step,
                **{str(key): value for key, value in row.items()},
                "layer": int(row["layer"]),
                "head": None if head is None or str(head) == "<NA>" else int(head),
                "count": int(row["count"]),
                "unit": "",
            }
        )
    return rows


def _turns(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run and layer: the index untrained and at the end, its extremes, and where its sign turns.

    ``turns`` is the first measured step from which on the sign is that of the end; none where it had that
    sign from the start on.
    """
    rows = []
    for (run, layer), part in of_layers(curves).groupby(["run", "layer"], sort=True):
        values = part.sort_values("step").set_index("step")["value"]
        same = (values > 0) == (values.iloc[-1] > 0)
        others = same.index[~same]
        rows.append(
            {
                "run": run,
                "depth": part["depth"].iloc[0],
                "seed": part["seed"].iloc[0],
                "layer": int(layer),
                "untrained": values.iloc[0],
                "lowest": values.min(),
                "lowest_step": values.idxmin(),
                "highest": values.max(),
                "highest_step": values.idxmax(),
                "end": values.iloc[-1],
                "turns": None if others.empty else values.index[values.index > others[-1]][0],
            }
        )
    return pd.DataFrame(rows).astype({"turns": "Int64"})

"""Train or find the series, track each as a user would, and put the runs together."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from joma.checkpoints.series.members import select
from joma.checkpoints.series.sources.find import find_series
from joma.core.errors import JomaError, UnfinishedError
from joma.core.files import Json
from joma.core.progress import Progress
from joma.data.corpora import load_corpus
from joma.data.text import tokenize
from joma.experiments.joma_paper.fig7 import Fig7
from joma.experiments.joma_paper.fig7.training import train
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.weights import wanted_tensors
from joma.instruments.track.orders import dates, layer_curves
from joma.measures.attention.statistics import ATTENTION_ENTROPY
from joma.measures.bounce import bounce

_FOLLOWED = (("stable_rank", "lower"), (ATTENTION_ENTROPY, "attention"))
_LEAST_POINTS, _LEAST_RUNS, _LEVEL = 8, 3, 0.05
_DOWNLOADS = ["model", "members", "bytes", "note"]


def run(settings: Fig7, progress: Progress) -> dict[str, pd.DataFrame]:
    """Tables ``curves``, ``layers``, ``dates`` and ``downloads``."""
    downloads = pd.DataFrame(
        [_download(settings, model) for model in settings.models], columns=_DOWNLOADS
    ).astype({"members": "Int64", "bytes": "Int64"})
    if settings.models:
        reached = downloads[downloads["note"] == ""]["model"]
        if reached.empty:
            raise UnfinishedError(f"none of the models can be had: {'; '.join(downloads['note'])}")
        runs = {f"model-{number}": partial(_hub, settings, name) for number, name in enumerate(reached)}
    else:
        load_corpus(settings.corpus)  # an error is told before processes are started
        runs = {f"seed-{seed}": partial(_seed, settings, seed) for seed in range(settings.seeds)}
    found = progress.parts(runs)
    curves = pd.concat([table.assign(run=name) for name, table in found.items()], ignore_index=True)
    curves = curves[["run", "step", "layer", "metric", "matrix", "value"]]
    return {
        "curves": curves,
        "layers": _layers(curves),
        "dates": dates(curves, ("run", "metric", "matrix")),
        "downloads": downloads,
    }


def _seed(settings: Fig7, seed: int, progress: Progress) -> pd.DataFrame:
    text = tokenize(load_corpus(settings.corpus), vocabulary_size=settings.vocabulary_size)
    with tempfile.TemporaryDirectory() as folder:
        series, held_out = Path(folder) / "run", Path(folder) / "held-out.npy"
        np.save(held_out, text.validation[: settings.windows * settings.length])
        train(settings, settings.seed + seed, text.training, text.vocabulary_size, series)
        job = TrackSettings.of(model=str(series), text=str(held_out), length=settings.length, changes=False)
        return _of_layers(job, whole=True)


def _hub(settings: Fig7, model: str, progress: Progress) -> pd.DataFrame:
    job = TrackSettings.of(model=model, revisions=settings.revisions, text=settings.text)
    return _of_layers(job, whole=False)  # of a published series some checkpoints may be lost


def _of_layers(job: TrackSettings, *, whole: bool) -> pd.DataFrame:
    tables = job.run(Progress(quiet=True))
    lacking = job.list_missing(tables)
    if whole and lacking:
        raise UnfinishedError(f"fig7: not everything could be measured: {lacking[0]}")
    curves = layer_curves(tables["values"])
    followed = pd.MultiIndex.from_frame(curves[["metric", "matrix"]]).isin(_FOLLOWED)
    return curves[followed & (curves["line"] == curves["line"].iloc[0])]


def _download(settings: Fig7, model: str) -> dict[str, Json]:
    """What a model takes, from the hub's own listing."""
    try:
        series = find_series([model], settings.revisions)
        chosen = select(series.members, settings.revisions, series.lost)
        wanted = None if settings.text else wanted_tensors(None)
        size = sum(series.to_fetch(member, wanted) for member in chosen)
        return {"model": model, "members": len(chosen), "bytes": size, "note": ""}
    except JomaError as error:
        return {"model": model, "members": None, "bytes": None, "note": str(error)}


def _layers(curves: pd.DataFrame) -> pd.DataFrame:
    """Dip and rebound of each layer: over all runs together where they are alike, else run by run.

    Alike are at least three runs of one depth and of the same steps: seeds. Of models of several depths,
    layer 6 of one is not layer 6 of another.
    """
    depths = curves.groupby("run")["layer"].nunique()
    together = curves.groupby("run")["step"].unique().map(tuple).nunique() == 1
    several = together and depths.nunique() == 1 and len(depths) >= _LEAST_RUNS
    rows = []
    for (metric, matrix, layer), one in curves.groupby(["metric", "matrix", "layer"], sort=True):
        wide = one.pivot_table(index="run", columns="step", values="value")
        groups = (
            {"all": wide} if several else {str(name): wide.loc[[name]].dropna(axis=1) for name in wide.index}
        )
        for name, group in groups.items():
            row = {"run": name, "metric": metric, "matrix": matrix, "layer": int(layer), "runs": len(group)}
            if group.shape[1] < _LEAST_POINTS:
                rows.append({**row, "verdict": "cannot tell"})
                continue
            values = group.to_numpy()
            found = bounce(group.columns.to_numpy(float), values if len(values) > 1 else values[0])
            falls, rises = found.dip_probability < _LEVEL, found.rebound_probability < _LEVEL
            verdict = "bounces" if falls and rises else "only falls" if falls else "no dip"
            rows.append(
                {
                    **row,
                    "dip_step": found.main.step,
                    "depth": found.main.depth,
                    "dip_probability": found.dip_probability,
                    "rebound": found.main.rebound,
                    "rebound_null": found.rebound_null,
                    "rebound_probability": found.rebound_probability,
                    "verdict": "cannot tell" if found.cannot_tell else verdict,
                }
            )
    numbers = ["dip_step", "depth", "dip_probability", "rebound", "rebound_null", "rebound_probability"]
    return pd.DataFrame(rows, columns=["run", "metric", "matrix", "layer", "runs", *numbers, "verdict"])

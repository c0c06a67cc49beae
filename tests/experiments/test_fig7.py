"""Fig. 7: its claims on made-up curves, the hub's listing, and one real training tracked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from joma.core.errors import InputError, UnfinishedError
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig7 import Fig7
from joma.experiments.joma_paper.fig7.claims import claims
from joma.experiments.joma_paper.fig7.figure import draw
from joma.experiments.joma_paper.fig7.run import _layers
from joma.experiments.joma_paper.fig7.training import saved_steps
from joma.instruments.track.orders import dates


def tables(top_bounces: bool, wave: bool, runs: int = 5) -> dict[str, pd.DataFrame]:
    """Six layers, 40 checkpoints: a fall, later in upper layers for a wave; a return in the upper half."""
    random = np.random.default_rng(0)
    steps = np.arange(40.0)
    rows = []
    for run in range(runs):
        order = range(6) if wave else random.permutation(6)
        for layer, late in enumerate(order):
            curve = 10 - 5 / (1 + np.exp(-(steps - 8 - 2 * late)))
            if top_bounces and layer >= 3:
                curve += 0.25 * np.clip(steps - 28, 0, None)
            curve += 0.02 * random.standard_normal(40)
            for step, value in zip(steps, curve, strict=True):
                rows.append((f"seed-{run}", int(step), layer, "stable_rank", "lower", value))
    curves = pd.DataFrame(rows, columns=["run", "step", "layer", "metric", "matrix", "value"])
    downloads = pd.DataFrame(columns=["model", "members", "bytes", "note"])
    return {
        "curves": curves,
        "layers": _layers(curves),
        "dates": dates(curves, ("run", "metric", "matrix")),
        "downloads": downloads,
    }


def made_pythias(as_the_paper_says: bool) -> dict[str, pd.DataFrame]:
    """Curves of the paper's shapes: 6, 24 and 32 layers, 20 checkpoints; or with the halves exchanged."""
    random = np.random.default_rng(1)
    steps = np.arange(20.0)
    rows = []
    for run, depth in {"pythia-70m": 6, "pythia-1.4b": 24, "pythia-6.9b": 32}.items():
        for layer in range(depth):
            curve = 10 - 5 / (1 + np.exp(-(steps - 4 - 3 * layer / depth)))
            if (layer >= depth / 2) == as_the_paper_says:
                curve += 0.4 * np.clip(steps - 12, 0, None)
            curve += 0.02 * random.standard_normal(20)
            rows += [
                (run, int(s), layer, "stable_rank", "lower", v) for s, v in zip(steps, curve, strict=True)
            ]
    curves = pd.DataFrame(rows, columns=["run", "step", "layer", "metric", "matrix", "value"])
    return {
        "curves": curves,
        "layers": _layers(curves),
        "dates": dates(curves, ("run", "metric", "matrix")),
        "downloads": pd.DataFrame(columns=["model", "members", "bytes", "note"]),
    }


def test_models_of_several_depths_are_judged_each_by_its_own_halves() -> None:
    found = made_pythias(as_the_paper_says=True)
    layers = found["layers"]
    assert (layers["runs"] == 1).all()
    bounces = layers[layers["verdict"] == "bounces"].groupby("run")["layer"].agg(["min", "count"])
    assert bounces.loc[["pythia-70m", "pythia-1.4b", "pythia-6.9b"]].to_numpy().tolist() == [
        [3, 3],
        [12, 12],
        [16, 16],
    ]
    (top,) = (claim for claim in claims(Fig7(), found) if claim.id == "fig7.top_layers")
    assert top.verdict == "holds"
    assert top.measured > 0.5
    assert "31 of 31 upper layers bounce, 31 of 31 lower layers only fall" in top.evidence
    assert verdicts(made_pythias(as_the_paper_says=False))["fig7.top_layers"] == "fails"
    assert len(draw(Fig7(), found).axes) == 3


def verdicts(found: dict[str, pd.DataFrame]) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in claims(Fig7(), found)}


def test_claims_hold_where_they_should_and_fail_where_they_should_not() -> None:
    as_stated = verdicts(tables(top_bounces=True, wave=True))
    assert as_stated["fig7.top_layers"] == "holds"
    assert as_stated["fig7.wave"] == "holds"
    otherwise = verdicts(tables(top_bounces=False, wave=False))
    assert otherwise["fig7.top_layers"] == "fails"
    assert otherwise["fig7.wave"] == "fails"


def test_a_wave_counts_in_five_seeds_only() -> None:
    assert verdicts(tables(top_bounces=True, wave=True, runs=4))["fig7.wave"] == "not tested"


def test_the_figure_is_drawn_of_the_tables() -> None:
    assert len(draw(Fig7(), tables(top_bounces=True, wave=True)).axes) == 3


def test_bad_settings_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="multiple of heads"):
        Fig7(width=10, heads=4)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnfinishedError, match="none of the models can be had"):
        Fig7(models=("lab/tiny",)).run(Progress(quiet=True))


@pytest.mark.parametrize(("steps", "count"), [(240, 8), (8, 8), (9, 8), (1000, 20), (2, 2), (100, 100)])
def test_checkpoints_are_closer_at_first_and_distinct(steps: int, count: int) -> None:
    saved = saved_steps(steps, count)
    assert len(set(saved)) == count
    assert saved[-1] == steps
    assert all(1 <= step <= steps for step in saved)
    assert np.all(np.diff(saved, n=2)[:-1] >= -1)


@pytest.mark.slow
def test_a_real_training_is_tracked(tmp_path: Path) -> None:
    settings = Fig7(seeds=1, layers=4, width=16, heads=2, length=16, batch=4, steps=8, vocabulary_size=50)
    found = settings.run(Progress(quiet=True))
    curves = found["curves"]
    assert sorted(curves["step"].unique()) == list(range(1, 9))
    assert set(curves["metric"]) == {"stable_rank", "attention_entropy"}
    assert curves[curves["metric"] == "attention_entropy"]["value"].between(0, np.log(16)).all()

"""``joma.log``: figures and tables in trackers, of which those that are installed write into folders here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import joma
import toy
from joma.core.errors import InputError
from joma.report.results import RunResult, read
from joma.runs.directory import run_experiment


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("run") / "run"
    run_experiment(toy.Toy(), folder)
    return Found(read(folder))


class Found:
    """The toy's run with a figure: its experiment is in no catalog, so that ``joma.read`` cannot draw it."""

    name = "toy"

    def __init__(self, result: RunResult) -> None:
        self.tables = {**result.tables, "long": pd.DataFrame({"step": range(300), "kind|of": ["x|y"] * 300})}

    def plot(self) -> Any:
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot([0, 1])
        return figure

    def answer(self) -> list[str]:
        return ["Two tables."]


def test_tensorboard_gets_a_picture_and_text(found: RunResult) -> None:
    written: dict[str, Any] = {}

    class Writer:
        def add_figure(self, tag: str, figure: Any, step: int) -> None:
            written[tag] = figure, step

        def add_text(self, tag: str, text: str, step: int) -> None:
            written[tag] = text, step

    joma.log(found, Writer(), step=7)
    assert set(written) == {"joma/toy", "joma/toy/answer", *(f"joma/toy/{name}" for name in found.tables)}
    assert {step for _, step in written.values()} == {7}
    assert written["joma/toy/answer"][0] == "Two tables."
    lines = written["joma/toy/long"][0].splitlines()
    assert lines[:3] == ["| step | kind\\|of |", "| --- | --- |", "| 0 | x\\|y |"]
    assert lines[-1] == "The first 200 of 300 rows."


@pytest.mark.parametrize("tracker", [print, object(), json, {}])
def test_what_is_no_tracker_is_refused(found: RunResult, tracker: object) -> None:
    with pytest.raises(InputError, match="a SummaryWriter of TensorBoard"):
        joma.log(found, tracker)


def test_mlflow(found: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    with mlflow.start_run() as run:
        joma.log(found, mlflow, step=3, name="mine")
        rows = mlflow.load_table("joma/mine/long-step3.json", run_ids=[run.info.run_id])
    assert rows["step"].tolist() == list(range(300))
    names = {item.path for item in mlflow.MlflowClient().list_artifacts(run.info.run_id, "joma/mine")}
    assert {"joma/mine/step3.png", "joma/mine/answer-step3.txt"} <= names


def test_wandb(found: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", project="joma", dir=tmp_path) as run:
        joma.log(found, run, step=2)
        joma.log(found, wandb, step=3)
        folder = Path(run.dir)
    media = [path for path in folder.rglob("*") if path.is_file()]
    assert len([path for path in media if path.suffix == ".png"]) == 2
    (long, _) = sorted(path for path in media if path.name.startswith("long_"))
    assert len(json.loads(long.read_text())["data"]) == 300


def test_trackio(found: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    run = logged_by_trackio(trackio, lambda: joma.log(found, trackio, step=2))
    assert run is not None
    assert list(tmp_path.rglob("*.png"))


def logged_by_trackio(trackio: Any, act: Callable[[], None]) -> object:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    run = trackio.init(project="joma", embed=False)
    act()
    trackio.finish()
    return run


def test_comet(found: RunResult, tmp_path: Path) -> None:
    comet = pytest.importorskip("comet_ml")
    experiment = comet.OfflineExperiment(
        offline_directory=str(tmp_path), project_name="joma", workspace="joma", display_summary_level=0
    )
    joma.log(found, experiment, step=2)
    experiment.end()
    assert list(tmp_path.glob("*.zip"))

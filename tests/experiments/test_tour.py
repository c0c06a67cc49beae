from __future__ import annotations

from pathlib import Path

import pytest
import torch

import joma
from joma.core.errors import InputError, RunDirectoryError
from joma.data.corpora import load_corpus
from joma.experiments import catalog, tour
from joma.experiments.tour import CORPUS, TOUR, decoder_runs
from joma.instruments.monitor.folder import read_table


def test_the_tours_experiments_exist() -> None:
    assert set(TOUR) <= set(catalog.names())


@pytest.fixture
def corpus() -> None:
    try:
        load_corpus(CORPUS)
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("corpus", "no_pictures")
def test_what_lies_there_and_is_none_of_the_demos_stays(tmp_path: Path) -> None:
    with joma.Monitor(torch.nn.Linear(2, 2), folder=tmp_path / "a" / "monitor") as monitor:
        monitor.step(0, loss=1.0)
    theirs = read_table(tmp_path / "a" / "monitor")
    with pytest.raises(RunDirectoryError, match="monitor of another run"):
        decoder_runs(tmp_path / "a", steps=12, layers=1, overwrite=True, quiet=True)
    assert read_table(tmp_path / "a" / "monitor").equals(theirs)
    weights = tmp_path / "b" / "decoder" / "checkpoint-0" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"theirs")
    with pytest.raises(RunDirectoryError, match="none of the demo's"):
        decoder_runs(tmp_path / "b", steps=12, layers=1, overwrite=True, quiet=True)
    assert weights.read_bytes() == b"theirs"


@pytest.mark.usefixtures("corpus", "no_pictures")
def test_a_training_that_was_cut_short_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as cut:
        cut.setattr(tour, "probe", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            decoder_runs(tmp_path, steps=22, layers=1, quiet=True)
    *_, monitored = decoder_runs(tmp_path, steps=12, layers=1, quiet=True)
    assert list(monitored.tables["statistics"].query("metric == 'loss'")["step"]) == list(range(12))


@pytest.mark.usefixtures("corpus")
def test_a_decoder_is_monitored_tracked_and_probed_once(tmp_path: Path) -> None:
    probed, tracked, monitored = decoder_runs(tmp_path, steps=12, layers=1, quiet=True)
    assert probed.settings["subject"] == "model"
    assert len(probed.settings["answer"]) >= 3
    assert {"attention", "ranks", "coherence", "joint_dynamics", "salience"} <= set(probed.tables)
    # The series ends with the weights that were probed.
    values = tracked.tables["values"].query("metric == 'stable_rank' and matrix == 'lower'")
    assert list(values["step"]) == [0, 10, 11, 12]
    ranks = probed.tables["ranks"].query("metric == 'stable_rank' and matrix == 'lower'")
    assert values["value"].iloc[-1] == pytest.approx(ranks["value"].item(), rel=1e-4)
    told = monitored.tables["statistics"]
    assert sorted(told.loc[told["metric"] == "attention_entropy", "step"].unique()) == [0, 10]
    assert (told["metric"] == "loss").sum() == 12
    first, *rest = monitored.settings["answer"]
    assert first.startswith("No fault was seen")
    assert any("no alarms and no state messages; the loss" in sentence for sentence in rest)
    before = (tmp_path / "probe" / "claims.json").stat().st_mtime_ns
    again = decoder_runs(tmp_path, steps=12, layers=1, quiet=True)
    assert [run.claims for run in again] == [probed.claims, tracked.claims, []]
    assert (tmp_path / "probe" / "claims.json").stat().st_mtime_ns == before

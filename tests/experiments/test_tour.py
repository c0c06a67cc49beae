from __future__ import annotations

from pathlib import Path

import pytest

from joma.data.corpora import load_corpus
from joma.errors import InputError
from joma.experiments import catalog
from joma.experiments.tour import CORPUS, TOUR, decoder_runs


def test_the_tours_experiments_exist() -> None:
    assert set(TOUR) <= set(catalog.names())


def test_a_decoder_is_monitored_tracked_and_probed_once(tmp_path: Path) -> None:
    try:
        load_corpus(CORPUS)
    except InputError as error:
        pytest.skip(str(error))
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
    assert monitored.settings["answer"][0].startswith(
        "Up to step 11: no alarms and no state messages; the loss"
    )
    before = (tmp_path / "probe" / "claims.json").stat().st_mtime_ns
    again = decoder_runs(tmp_path, steps=12, layers=1, quiet=True)
    assert [run.claims for run in again] == [probed.claims, tracked.claims, []]
    assert (tmp_path / "probe" / "claims.json").stat().st_mtime_ns == before

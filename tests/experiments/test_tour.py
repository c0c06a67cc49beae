from __future__ import annotations

from pathlib import Path

import pytest

from joma.data.corpora import load_corpus
from joma.errors import InputError
from joma.experiments import catalog
from joma.experiments.tour import CORPUS, TOUR, probed_decoder


def test_the_tours_experiments_exist() -> None:
    assert set(TOUR) <= set(catalog.names())


def test_a_decoder_is_trained_and_probed_once(tmp_path: Path) -> None:
    try:
        load_corpus(CORPUS)
    except InputError as error:
        pytest.skip(str(error))
    run = probed_decoder(tmp_path / "probe", steps=3, layers=1, quiet=True)
    assert run.settings["subject"] == "model"
    assert len(run.settings["answer"]) >= 3
    assert {"attention", "ranks", "coherence", "joint_dynamics", "salience"} <= set(run.tables)
    before = (tmp_path / "probe" / "claims.json").stat().st_mtime_ns
    assert probed_decoder(tmp_path / "probe", steps=3, layers=1, quiet=True).claims == run.claims
    assert (tmp_path / "probe" / "claims.json").stat().st_mtime_ns == before

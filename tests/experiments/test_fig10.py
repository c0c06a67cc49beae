from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from joma.errors import InputError
from joma.experiments.fig10 import Fig10
from joma.experiments.fig10.claims import learned
from joma.runs.directory import Run, run_experiment


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(120)]
    share = 1 / np.arange(1, 121)
    text = " ".join(random.choice(words, size=6000, p=share / share.sum()))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(text, encoding="utf-8")
    return {
        "corpus": str(path),
        "tokens": 4000,
        "window": 20,
        "top": 8,
        "shown": 2,
        "steps": 20,
        "width": 16,
        "hidden": 24,
        "vocabulary_size": 100,
    }


@pytest.fixture(scope="module")
def run(settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_experiment(Fig10(**settings), tmp_path_factory.mktemp("fig10") / "run")


def test_tables_of_both_networks(run: Run) -> None:
    assert {"neurons", "untrained_neurons", "null", "untrained_null", "contexts", "layers"} <= set(run.tables)
    trained, untrained = run.tables["neurons"], run.tables["untrained_neurons"]
    keys = ["layer", "neuron", "metric"]
    assert trained[keys].equals(untrained[keys])
    assert not trained["value"].equals(untrained["value"])
    assert len(run.tables["layers"]) == 2
    # Words that are not in the vocabulary are neither queries nor attended to.
    tokens = run.tables["context_tokens"]
    assert not tokens[tokens["query"] | tokens["bold"]]["piece"].str.contains("<unk>").any()


def test_claims_say_what_the_tables_say(run: Run) -> None:
    claims = {claim.id.removeprefix("fig10."): claim for claim in run.claims}
    names = {"exists", "more_than_chance", "unrelated", "different_queries", "learned", "selective"}
    assert set(claims) == names
    wide = run.tables["neurons"].pivot(index=["layer", "neuron"], columns="metric", values="value")
    other = run.tables["untrained_neurons"].pivot(index=["layer", "neuron"], columns="metric", values="value")
    scored = wide["p_value"].dropna()
    assert claims["more_than_chance"].measured == pytest.approx((scored <= 0.05).mean())
    assert claims["learned"].null == pytest.approx((other["p_value"].dropna() <= 0.05).mean())
    significant = wide["q_value"] <= 0.05
    assert (claims["exists"].verdict == "holds") == bool(significant.any())
    if not significant.any():
        assert claims["different_queries"].verdict == "not tested"


def test_same_seed_same_tables(settings: dict[str, object], run: Run, tmp_path: Path) -> None:
    again = run_experiment(Fig10(**settings), tmp_path / "run")
    for name, table in run.tables.items():
        assert table.equals(again.tables[name]), name


def test_figure(run: Run) -> None:
    assert (run.directory / "figure.png").stat().st_size > 10_000


def test_another_model(settings: dict[str, object], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from probe_models import tiny_model

    tiny_model("llama").save_pretrained(tmp_path / "llama")
    with pytest.raises(InputError, match="has no tokenizer"):
        run_experiment(Fig10(**{**settings, "model": str(tmp_path / "llama")}), tmp_path / "run")


def test_bad_settings(settings: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot hold two patterns of 5"):
        Fig10(top=8, smallest=5)
    with pytest.raises(InputError, match="fewer than the 9000 asked for"):
        run_experiment(Fig10(**{**settings, "tokens": 9000}), tmp_path / "run")


@pytest.mark.slow
def test_quick_preset_finds_superposition_that_training_made(tmp_path: Path) -> None:
    run = run_experiment(Fig10(), tmp_path / "run")
    verdicts = {claim.id: claim.verdict for claim in run.claims}
    assert verdicts["fig10.exists"] == "holds"
    assert verdicts["fig10.learned"] == "holds"


def _scored(values: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"metric": "p_value", "value": values})


def test_learned_counts_the_neurons_below_the_level_in_either_network() -> None:
    often, never = _scored([0.001] * 8 + [0.9] * 4), _scored([0.5] * 12)
    found = learned({"neurons": often, "untrained_neurons": never})
    assert (found.verdict, found.measured, found.null) == ("holds", pytest.approx(8 / 12), 0.0)
    turned = learned({"neurons": never, "untrained_neurons": often})
    assert (turned.verdict, turned.measured, turned.null) == ("fails", 0.0, pytest.approx(8 / 12))
    assert learned({"neurons": often, "untrained_neurons": often}).verdict == "fails"

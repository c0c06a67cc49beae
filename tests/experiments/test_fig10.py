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
        "seeds": 2,
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


def test_claims_say_what_the_tables_say(settings: dict[str, object], run: Run) -> None:
    claims = {claim.id.removeprefix("fig10."): claim for claim in run.claims}
    names = {"exists", "more_than_chance", "unrelated", "different_queries", "learned", "selective"}
    assert set(claims) == names
    wide = run.tables["neurons"].pivot(index=["layer", "neuron"], columns="metric", values="value")
    other = run.tables["untrained_neurons"].pivot(index=["layer", "neuron"], columns="metric", values="value")
    scored = wide["p_value"].dropna()
    of_first = {name: table for name, table in run.tables.items() if name != "seeds"}
    first = {c.id.removeprefix("fig10."): c for c in Fig10(**{**settings, "seeds": 1}).claims(of_first)}
    assert first["more_than_chance"].measured == pytest.approx((scored <= 0.05).mean())
    assert first["learned"].null == pytest.approx((other["p_value"].dropna() <= 0.05).mean())
    if not (wide["q_value"] <= 0.05).any():
        assert first["exists"].verdict == "fails"
        assert first["different_queries"].verdict == "not tested"


def test_other_seeds_have_scores_of_their_own(run: Run) -> None:
    seeds = run.tables["seeds"]
    assert set(seeds["seed"]) == {1}
    assert set(seeds["table"]) == {"neurons", "null", "untrained_neurons"}
    other = seeds[seeds["table"] == "neurons"]["value"].to_numpy()
    assert not np.array_equal(other, run.tables["neurons"]["value"].to_numpy(), equal_nan=True)


def _neurons(count: int, *, found: int, related: int, apart: int) -> pd.DataFrame:
    """Scores in which so many neurons are in superposition, related in meaning, with queries of their own."""
    rows = []
    for neuron in range(count):
        small = 1e-6 if neuron < found else 0.5
        values = {
            "p_value": small,
            "q_value": small,
            "similarity_p_value": small,
            "relatedness_p_value": 0.01 if neuron < related else 0.6,
            "relatedness": 0.1,
            "shared_queries": 0.0 if neuron < apart else 0.9,
        }
        place = {"layer": 0, "stack": "", "neuron": neuron}
        rows += [{**place, "metric": metric, "value": value} for metric, value in values.items()]
    return pd.DataFrame(rows)


def _verdicts(trained: pd.DataFrame, untrained: pd.DataFrame) -> dict[str, str]:
    random = np.random.default_rng(0).normal(size=200)
    null = pd.DataFrame({"layer": 0, "stack": "", "metric": "superposition", "value": random})
    tables = {"neurons": trained, "untrained_neurons": untrained, "null": null}
    return {c.id.removeprefix("fig10."): c.verdict for c in Fig10(seeds=1).claims(tables)}


def test_claims_are_as_strong_as_their_words() -> None:
    nothing = _neurons(400, found=0, related=0, apart=0)
    good = _verdicts(_neurons(400, found=100, related=2, apart=50), nothing)
    assert set(good.values()) == {"holds"}
    # One neuron of a hundred with its own queries, or all of them related in meaning, is not enough.
    poor = _verdicts(_neurons(400, found=100, related=100, apart=1), nothing)
    assert [poor[name] for name in ("exists", "unrelated", "different_queries")] == ["fails"] * 3
    # Too few neurons to say that their patterns are unrelated.
    assert _verdicts(_neurons(400, found=5, related=0, apart=5), nothing)["unrelated"] == "not tested"
    # What an untrained network has too is not learned, nor is there more of it.
    same = _neurons(400, found=100, related=2, apart=50)
    assert [_verdicts(same, same)[name] for name in ("exists", "learned", "selective")] == ["fails"] * 3


def test_one_seed_is_enough_to_fail() -> None:
    random = np.random.default_rng(0).normal(size=200)
    null = pd.DataFrame({"layer": 0, "stack": "", "metric": "superposition", "value": random})
    good, nothing = _neurons(400, found=100, related=2, apart=50), _neurons(400, found=0, related=0, apart=0)
    for other, verdict in ((good, "holds"), (nothing, "fails")):
        tables = {"neurons": other, "null": null, "untrained_neurons": nothing}
        seeds = pd.concat([table.assign(table=name, seed=1) for name, table in tables.items()])
        first = {"neurons": good, "null": null, "untrained_neurons": nothing, "seeds": seeds}
        claims = {c.id: c for c in Fig10(seeds=2).claims(first)}
        assert claims["fig10.learned"].verdict == verdict


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

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from joma.core.claim import Claim
from joma.core.errors import InputError
from joma.experiments.joma_paper.fig10 import Fig10
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
        "seeds": 3,
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
    assert set(claims) == {"exists", "learned", "unrelated", "different_queries", "selective"}
    seeds = run.tables["seeds"]
    untrained = [run.tables["untrained_neurons"]]
    untrained += [one for _, one in seeds[seeds["table"] == "untrained_neurons"].groupby("seed")]
    shares = [(one[one["metric"] == "p_value"]["value"].dropna() <= 0.05).mean() for one in untrained]
    assert claims["learned"].null == pytest.approx(np.mean(shares))
    assert claims["learned"].verdict == "fails"  # words in random order teach nothing


def test_other_seeds_have_scores_of_their_own(run: Run) -> None:
    seeds = run.tables["seeds"]
    assert set(seeds["seed"]) == {1, 2}
    assert set(seeds["table"]) == {"neurons", "null", "untrained_neurons"}
    other = seeds[(seeds["table"] == "neurons") & (seeds["seed"] == 1)]["value"].to_numpy()
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


def _claims(trained: list[pd.DataFrame], untrained: list[pd.DataFrame]) -> dict[str, Claim]:
    """The claims of made-up seeds, each with an untrained network."""
    random = np.random.default_rng(0).normal(size=200)
    null = pd.DataFrame({"layer": 0, "stack": "", "metric": "superposition", "value": random})
    seeds = [
        {"neurons": one, "untrained_neurons": other, "null": null}
        for one, other in zip(trained, untrained, strict=True)
    ]
    others = [t.assign(table=n, seed=i) for i, s in enumerate(seeds[1:], start=1) for n, t in s.items()]
    tables = seeds[0] | ({"seeds": pd.concat(others)} if others else {})
    return {c.id.removeprefix("fig10."): c for c in Fig10(seeds=len(seeds)).claims(tables)}


def _verdicts(trained: pd.DataFrame, untrained: pd.DataFrame) -> dict[str, str]:
    return {name: claim.verdict for name, claim in _claims([trained] * 3, [untrained] * 3).items()}


def test_claims_are_as_strong_as_their_words() -> None:
    nothing = _neurons(400, found=0, related=0, apart=0)
    good = _verdicts(_neurons(400, found=100, related=2, apart=50), nothing)
    assert set(good.values()) == {"holds"}
    # One neuron of a hundred with its own queries is not enough.
    assert _verdicts(_neurons(400, found=100, related=2, apart=1), nothing)["different_queries"] == "fails"
    # Related in meaning, all of them or a fifth.
    poor = _verdicts(_neurons(400, found=100, related=100, apart=1), nothing)
    assert [poor[name] for name in ("exists", "unrelated", "different_queries")] == ["fails"] * 3
    assert _verdicts(_neurons(400, found=100, related=20, apart=50), nothing)["unrelated"] == "fails"
    # Too few neurons to say that their patterns are unrelated.
    assert _verdicts(_neurons(4000, found=20, related=0, apart=5), nothing)["unrelated"] == "not tested"
    # What an untrained network has too is not learned, nor is there more of it.
    same = _neurons(400, found=100, related=2, apart=50)
    assert [_verdicts(same, same)[name] for name in ("exists", "learned", "selective")] == ["fails"] * 3


def test_more_than_untrained_networks_differ_among_themselves() -> None:
    trained = [_neurons(400, found=100, related=2, apart=50)] * 3
    near = [_neurons(400, found=n, related=0, apart=0) for n in (58, 60, 62)]
    wide = [_neurons(400, found=n, related=0, apart=0) for n in (30, 60, 90)]
    assert _claims(trained, near)["learned"].verdict == "holds"
    # 60 + 2.92 * 30 * sqrt(4 / 3) = 161.
    claim = _claims(trained, wide)["learned"]
    assert (claim.verdict, claim.measured, claim.null) == ("fails", 0.25, pytest.approx(0.15))
    assert claim.criterion[0].threshold == pytest.approx(0.403, abs=5e-4)


def test_fewer_than_three_untrained_networks_decide_nothing() -> None:
    good, nothing = _neurons(400, found=100, related=2, apart=50), _neurons(400, found=0, related=0, apart=0)
    assert {c.verdict for c in _claims([good] * 2, [nothing] * 2).values()} == {"not tested"}


def test_one_seed_is_enough_to_fail() -> None:
    good, nothing = _neurons(400, found=100, related=2, apart=50), _neurons(400, found=0, related=0, apart=0)
    for other, verdict in ((good, "holds"), (nothing, "fails")):
        assert _claims([good, good, other], [nothing] * 3)["learned"].verdict == verdict


@pytest.mark.usefixtures("no_pictures")
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
    verdicts = {claim.id.removeprefix("fig10."): claim.verdict for claim in run.claims}
    assert (verdicts["learned"], verdicts["selective"]) == ("holds", "holds")
    assert (verdicts["exists"], verdicts["unrelated"]) == ("fails", "fails")  # its patterns are related

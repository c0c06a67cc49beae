from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from joma.checks.block_rank import FIGURE_4
from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig6 import Fig6
from joma.experiments.joma_paper.fig6.claims import STATEMENTS, block_law, bottom_bounces_less, exceeds_null
from joma.experiments.joma_paper.fig6.run import REAL, SHUFFLED, UNTRAINED_QK
from joma.experiments.shared.curves import find_bounces
from joma.experiments.shared.recorded import compare, read_record
from joma.measures.bounce import bounce
from joma.models.decoder import Decoder
from joma.runs.executors.processes import local_processes
from joma.theory.block_salience import entropy
from joma.theory.salience import solve
from small_decoders import SMALL_DECODERS

SMALL = {**SMALL_DECODERS, "seed": 0}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return Fig6(**SMALL).run(Progress(quiet=True, executor=local_processes))


def test_tables_are_tidy_and_complete(tables: dict[str, pd.DataFrame]) -> None:
    curves = tables["curves"]
    of_block = {"kappa", "kappa_share", "saliency", "block_rebound"}
    assert set(curves["metric"]) == {
        *("attention_entropy", "stable_rank", "stable_rank_of_change", "validation_loss"),
        *of_block,
        *("nearest_neuron", "correlated_neurons"),
        *(f"{metric}, shuffled" for metric in of_block),
    }
    assert set(curves["step"]) == set(Fig6(**SMALL).measured_steps())
    assert curves.groupby("run")["layer"].nunique().to_dict() == {"layers-1-seed-0": 1, "layers-2-seed-0": 2}
    assert curves["value"].notna().all()
    assert len(tables["bounces"]) == 3 * 3


def test_same_settings_same_tables(tables: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joma.core.progress.usable_cores", lambda: 1)
    again = Fig6(**SMALL).run(Progress(quiet=True))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, again[name], check_exact=True)
    other = Fig6(**{**SMALL, "seed": 1}).run(Progress(quiet=True))
    assert not np.allclose(other["curves"]["value"], tables["curves"]["value"])


def test_figure_and_claims_come_from_the_tables_alone(tables: dict[str, pd.DataFrame]) -> None:
    experiment = Fig6(**SMALL)
    with style("dark"):
        figure = experiment.draw(tables)
    assert len(figure.axes) == 6
    claims = {claim.id: claim for claim in experiment.claims(tables)}
    assert set(claims) == {
        *("fig6.falls", "fig6.rebound", "fig6.early", "fig6.bottom"),
        *("fig6.rank_falls", "fig6.rank_rebounds", "fig6.authors", "fig6.block_law"),
        *(
            "fig6.fall_size",
            "fig6.rebound_size",
            "fig6.beyond_shuffled",
            "fig6.beyond_untrained_qk",
            "fig6.rank_of_change_rebounds",
        ),
        *("fig6.resembles_fig4", "fig6.rank_is_more_reliable", "fig6.neurons_correlate"),
    }
    assert {claim.verdict for claim in claims.values()} == {"not tested"}
    assert claims["fig6.falls"].evidence.startswith(
        "seeds = 1: a claim about learning needs 3; measured is the smallest"
    )
    three = {
        name: pd.concat([t.assign(run=t["run"] + f"-{k}", seed=k) for k in range(3)], ignore_index=True)
        for name, t in tables.items()
        if name != "authors"
    }
    three["authors"] = tables["authors"]
    tested = [claim for claim in experiment.claims(three) if claim.verdict != "not tested"]
    assert len(tested) >= 9
    assert all(claim.null is not None for claim in tested)


def made_up(entropy: Any, rank: Any, every: int = 50, seeds: int = 3) -> dict[str, pd.DataFrame]:
    """Tables of runs whose curves are given functions of the step."""
    random = np.random.default_rng(0)
    steps = np.arange(0, 4001, every)
    rows = []
    for seed in range(seeds):
        for metric, curve in (("attention_entropy", entropy), ("stable_rank", rank)):
            values = curve(steps) + 0.01 * random.normal(size=steps.size)
            rows += [
                {
                    "run": f"r{seed}",
                    "seed": seed,
                    "depth": 1,
                    "learning_rate": 1e-3,
                    "variant": REAL,
                    "step": s,
                    "layer": 0,
                    "metric": metric,
                    "value": v,
                }
                for s, v in zip(steps, values, strict=True)
            ]
    curves = pd.DataFrame(rows)
    authors = compare(curves, curves.iloc[:0], 0)
    return {"curves": curves, "bounces": find_bounces(curves, every, pooled=False), "authors": authors}


def test_five_seeds_are_judged_together_by_their_spread() -> None:
    tables = made_up(valley, falling, seeds=5)
    bounces = tables["bounces"].query("metric == 'attention_entropy'")
    by_seed = (
        tables["curves"]
        .query("metric == 'attention_entropy'")
        .pivot(index="seed", columns="step", values="value")
    )
    together = bounce(by_seed.columns.to_numpy(), by_seed.to_numpy())
    assert set(bounces["rebound_probability"]) == {together.rebound_probability}
    assert set(bounces["dip_null"]) == {together.dip_null}
    assert bounces["rebound"].nunique() == 5  # sizes stay each run's own
    claims = {claim.id: claim for claim in Fig6(**SMALL).claims(tables)}
    assert "runs' spread" in claims["fig6.rebound"].null_description
    four = made_up(valley, falling, seeds=4)["bounces"].query("metric == 'attention_entropy'")
    assert four["rebound_null"].nunique() == 4


def valley(steps: Any) -> Any:
    return 2.6 - 0.9 * np.clip(steps / 1000, 0, 1) + 0.8 * np.clip((steps - 1000) / 3000, 0, 1)


def falling(steps: Any) -> Any:
    return 1.6 + np.exp(-steps / 500)


def flat(steps: Any) -> Any:
    return 2.5 + 0 * steps


def figure_4(steps: Any) -> Any:
    """Fig. 4's own course, its dip at step 700."""
    times = np.linspace(0, 20, 40_001)
    course = entropy(0.5 * np.square(solve(np.array(FIGURE_4), times).v))
    return np.interp(steps * times[course.argmin()] / 700, times, course)


@pytest.mark.parametrize(("curve", "verdict"), [(figure_4, "holds"), (falling, "fails")])
def test_what_takes_fig_4s_course_resembles_it(curve: Any, verdict: str) -> None:
    claims = {claim.id: claim for claim in Fig6().claims(made_up(curve, curve))}
    assert claims["fig6.resembles_fig4"].verdict == verdict
    assert claims["fig6.block_law"].verdict == claims["fig6.neurons_correlate"].verdict == "not tested"


def test_the_less_noisy_curve_is_the_more_reliable() -> None:
    deep = made_up(valley, lambda steps: 4 * valley(steps))
    claims = {claim.id: claim for claim in Fig6().claims(deep)}
    assert claims["fig6.rank_is_more_reliable"].verdict == "holds"
    shallow = made_up(lambda steps: 4 * valley(steps), valley)
    claims = {claim.id: claim for claim in Fig6().claims(shallow)}
    assert claims["fig6.rank_is_more_reliable"].verdict == "fails"


@pytest.mark.parametrize(
    ("entropy", "rank", "expected"),
    [
        (
            valley,
            valley,
            {"falls": "holds", "rebound": "holds", "rank_falls": "holds", "rank_rebounds": "holds"},
        ),
        (
            falling,
            falling,
            {"falls": "holds", "rebound": "fails", "rank_falls": "holds", "rank_rebounds": "fails"},
        ),
        (flat, flat, {"falls": "fails", "rebound": "fails", "rank_falls": "fails", "rank_rebounds": "fails"}),
    ],
)
def test_claims_can_hold_and_fail(entropy: Any, rank: Any, expected: dict[str, str]) -> None:
    claims = {claim.id: claim.verdict for claim in Fig6().claims(made_up(entropy, rank))}
    assert {key: claims[f"fig6.{key}"] for key in expected} == expected


@pytest.mark.parametrize(
    ("column", "claim", "value"),
    [
        ("dip_probability", "falls", 0.06),
        ("rebound_probability", "rebound", 0.06),
        ("dip_probability", "rebound", 0.06),
        ("depth_of_dip", "fall_size", 0.45),
        ("rebound", "rebound_size", 0.19),
    ],
)
@pytest.mark.parametrize("metric", ["attention_entropy", "stable_rank"])
def test_one_run_just_short_of_a_threshold_fails(metric: str, column: str, claim: str, value: float) -> None:
    """Of the direction, 5 %; of the entropy's size, half a nat and a fifth of a nat."""
    tables = made_up(valley, valley)
    if metric == "stable_rank":
        if claim.endswith("_size"):
            return
        claim = {"falls": "rank_falls", "rebound": "rank_rebounds"}[claim]
    bounces = tables["bounces"]
    row = bounces.index[(bounces["metric"] == metric) & (bounces["seed"] == 1)]
    found = {c.id: c.verdict for c in Fig6().claims(tables)}
    assert found[f"fig6.{claim}"] == "holds"
    bounces.loc[row, column] = value
    found = {c.id: c.verdict for c in Fig6().claims(tables)}
    assert found[f"fig6.{claim}"] == "fails"


@pytest.mark.parametrize(
    ("bottom", "null", "verdict"), [(0.2, 0.29, "holds"), (0.5, 0.0, "fails"), (0.2, 0.31, "fails")]
)
def test_the_bottom_bounces_less_in_every_run_and_beyond_noise(
    bottom: float, null: float, verdict: str
) -> None:
    """The top rebounds by 0.5 in three runs, the bottom by 0.2, in the last by ``bottom``."""
    rebounds = [(run, layer, 0.5 if layer else 0.2) for run in ("a", "b", "c") for layer in (0, 1)]
    bounces = pd.DataFrame(rebounds, columns=["run", "layer", "rebound"])
    bounces = bounces.assign(metric="attention_entropy", depth=2, rebound_null=null)
    bounces.loc[4, "rebound"] = bottom
    assert bottom_bounces_less(bounces).verdict == verdict


@pytest.mark.parametrize(
    ("predicted", "shuffled", "verdict"), [(0.2, 0.01, "holds"), (0.1, 0.01, "fails"), (0.2, 0.2, "fails")]
)
def test_the_block_law_is_judged_beside_shuffled_weights(
    predicted: float, shuffled: float, verdict: str
) -> None:
    courses = {
        "kappa": (1.0, -1.0, 1.0),
        "kappa_share": (0.2, 0.2, 0.05),
        "block_rebound": (0.0, 0.0, predicted),
        "block_rebound, shuffled": (0.0, 0.0, shuffled),
    }
    rows = [
        {"run": "a", "layer": 0, "metric": metric, "step": step, "value": value}
        for metric, course in courses.items()
        for step, value in zip((10, 20, 30), course, strict=True)
    ]
    entropy = pd.DataFrame([{"run": "a", "layer": 0, "rebound": 0.3, "dip_step": 20.0}])
    claim = block_law(entropy, pd.DataFrame(rows))
    assert claim.verdict == verdict
    assert claim.measured == pytest.approx(1 - predicted / 0.3, rel=1e-12)
    assert "until step 10, the dip is at 20 or later" in claim.evidence


def test_a_curve_that_cannot_tell_is_no_rebound_and_no_failure() -> None:
    tables = made_up(valley, valley)
    bounces = tables["bounces"]
    bounces["rebound_probability"] = 0.2
    for cannot, verdict in ((True, "not tested"), (False, "fails")):
        bounces["cannot_tell"] = cannot
        found = {c.id: c.verdict for c in Fig6().claims(tables)}
        assert found["fig6.rebound"] == found["fig6.rank_rebounds"] == verdict


def test_the_authors_curves_decide_the_shape(shared: Path) -> None:
    path = str(shared / "reference" / "joma_fig6_fig8_wikitext2.csv.gz")
    record = read_record(path)
    theirs = record.query("depth == 1 and learning_rate == 1e-4 and metric == 'attention_entropy'")
    mean = theirs.groupby("step")["value"].mean()

    def as_theirs(steps: Any) -> Any:
        return np.interp(steps, mean.index, mean.to_numpy())

    experiment = Fig6(
        corpus="wikitext-2", learning_rate=1e-4, steps=40_000, measure_every=1000, authors_curves=path
    )
    tables = made_up(valley, valley)
    steps = tables["curves"]["step"] * 10  # 0 ... 40,000
    curves = tables["curves"].assign(step=steps, learning_rate=1e-4, value=as_theirs(steps))

    def verdict(curves: pd.DataFrame, settings: Fig6 = experiment) -> str:
        claims = settings.claims({**tables, "authors": compare(curves, record, 0)})
        assert claims[-1].id == "fig6.authors"
        return claims[-1].verdict

    assert verdict(curves) == "holds"
    assert verdict(curves.assign(value=-curves["value"])) == "fails"
    assert verdict(curves.assign(learning_rate=2e-4)) == "not tested"
    assert verdict(curves, Fig6(corpus="wikitext-2")) == "not tested"
    with pytest.raises(InputError, match=r"nowhere\.csv cannot be read"):
        Fig6(**SMALL, authors_curves="nowhere.csv").run(Progress(quiet=True))


def test_the_authors_own_curves_are_judged_by_our_tests(shared: Path) -> None:
    experiment = Fig6(recorded=str(shared / "reference" / "joma_fig6_fig8_wikitext2.csv.gz"))
    tables = experiment.run(Progress(quiet=True))
    bounces = tables["bounces"]
    assert (bounces["learning_rate"] == 1e-4).all()
    assert bounces["run"].nunique() == 21
    top = bounces[bounces["layer"] == bounces["depth"] - 1]
    assert top["rebound_probability"].nunique() == 1  # of all depths together
    wide = pd.read_csv(experiment.recorded).query("lr == 1e-4")
    curves = [
        of[f"entropy_layer{depth - 1}"].to_numpy() for (depth, _), of in wide.groupby(["layers", "seed"])
    ]
    together = bounce(np.arange(59), np.stack(curves))
    assert top["rebound_probability"].iloc[0] == pytest.approx(together.rebound_probability, rel=1e-9)
    assert top["rebound"].min() == pytest.approx(0.1514, abs=5e-5)
    claims = {claim.id: claim for claim in experiment.claims(tables)}
    assert claims["fig6.early"].verdict == claims["fig6.rank_falls"].verdict == "not tested"
    assert len(experiment.draw(tables).axes) == 21
    assert "21 of 21 runs" in experiment.answer(tables)[1]


def test_the_nulls_are_the_same_decoders_but_for_what_they_lack() -> None:
    settings = {**SMALL, "layers": (1,), "nulls": True, "vocabulary_size": 200}
    experiment = Fig6(**settings)
    tables = experiment.run(Progress(quiet=True))
    curves = tables["curves"]
    assert set(curves["run"]) == {
        "layers-1-seed-0",
        "layers-1-seed-0-shuffled",
        "layers-1-seed-0-untrained-qk",
    }
    untouched = Fig6(**{**settings, "nulls": False}).run(Progress(quiet=True))["curves"]
    real = curves[curves["variant"] == REAL].reset_index(drop=True)
    pd.testing.assert_frame_equal(real, untouched, check_exact=True)
    loss = curves[curves["metric"] == "validation_loss"].set_index(["variant", "step"])["value"]
    assert loss[UNTRAINED_QK, 0] == loss[REAL, 0] != loss[UNTRAINED_QK, 60]
    assert loss[SHUFFLED, 0] != loss[REAL, 0]
    assert len(experiment.draw(tables).axes) == 3


def test_queries_and_keys_stay_while_all_else_is_trained() -> None:
    model = Decoder(20, layers=1, width=8, hidden=8, dropout=0.0)
    model.keep_queries_and_keys()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        adam.zero_grad()
        model(torch.arange(12).view(2, 6)).square().mean().backward()
        adam.step()
    after = dict(model.named_parameters())
    for name in ("layers.0.in_projection.weight", "layers.0.in_projection.bias"):
        assert torch.equal(after[name][:16], before[name][:16])
        assert not torch.equal(after[name][16:], before[name][16:])
    assert not torch.equal(after["layers.0.lower.weight"], before["layers.0.lower.weight"])


@pytest.mark.parametrize(
    ("nulls", "verdict"), [((0.1, 0.15, 0.2, 0.22, 0.24), "holds"), ((0.1, 0.26, 0.27, 0.3, 0.5), "fails")]
)
def test_rebounds_are_judged_beside_those_of_a_null(nulls: tuple[float, ...], verdict: str) -> None:
    real = (0.25, 0.26, 0.28, 0.3, 0.31)
    bounces = pd.DataFrame(
        {
            "variant": [REAL] * 5 + [SHUFFLED] * 5,
            "rebound": real + nulls,
            "depth": 1,
            "layer": 0,
            "metric": "attention_entropy",
        }
    )
    claim = exceeds_null(bounces, SHUFFLED, STATEMENTS["fig6.beyond_shuffled"])
    assert (claim.verdict, claim.measured) == (verdict, 0.28)
    assert claim.null == sorted(nulls)[2]
    # Of all 252 ways to deal out ten ranks, those at least as far apart.
    if verdict == "holds":
        assert "p 0.004" in claim.evidence
    assert exceeds_null(bounces, UNTRAINED_QK, STATEMENTS["fig6.beyond_untrained_qk"]).verdict == "not tested"


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="layers is empty"):
        Fig6(layers=())
    with pytest.raises(InputError, match="too few to find a dip"):
        Fig6(steps=5, measure_every=50)
    with pytest.raises(InputError, match=r"neither a file nor a known corpus"):
        Fig6(corpus="nowhere").run(Progress(quiet=True))

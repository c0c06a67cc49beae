"""Fig. 8: what decoders do at each rate, and whether those that bounce learn best."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from joma.core.errors import InputError
from joma.core.progress import Progress
from joma.experiments.joma_paper.fig8 import Fig8
from joma.experiments.joma_paper.fig8.claims import (
    _correlation_within,
    answer,
    at_common_loss,
    bounce_is_best,
    large_rate_collapses,
    rates_differ,
    some_rate_bounces,
)
from joma.experiments.joma_paper.fig8.run import BOUNCES, COLLAPSES, FALLS, STAYS, _decoders
from joma.experiments.shared.recorded import read_record
from joma.runs.executors.processes import local_processes
from small_decoders import SMALL_DECODERS

SMALL = {**SMALL_DECODERS, "learning_rate": (1e-3, 1e-2)}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return Fig8(**SMALL).run(Progress(quiet=True, executor=local_processes))


def test_a_cell_is_one_training(tables: dict[str, pd.DataFrame]) -> None:
    cells = Fig8(**SMALL).cells()
    assert [(cell.layers, cell.learning_rate, cell.seed) for cell in cells] == [
        ((2,), (1e-3,), 10),
        ((2,), (1e-2,), 10),
        ((1,), (1e-3,), 10),
        ((1,), (1e-2,), 10),
    ]
    assert [cell.cells() for cell in cells] == [[cell] for cell in cells]
    decoders = tables["decoders"]
    assert len(decoders) == tables["curves"]["run"].nunique() == 4
    one = cells[1].run(Progress(quiet=True))["curves"]
    same = tables["curves"][tables["curves"]["run"] == one["run"].iloc[0]].reset_index(drop=True)
    pd.testing.assert_frame_equal(one, same, check_exact=True)


def test_figure_claims_and_answer_come_from_the_tables_alone(tables: dict[str, pd.DataFrame]) -> None:
    experiment = Fig8(**SMALL)
    assert len(experiment.draw(tables).axes) == 6
    claims = experiment.claims(tables)
    assert {claim.verdict for claim in claims} == {"not tested"}  # one seed
    assert "fewer than 3 seeds" in claims[0].evidence
    assert "4 of 4 runs (layers 1, 2; learning rates 0.001, 0.01; 1 seeds)" in experiment.answer(tables)[-1]


def decoders(
    course: dict[float, str], loss: dict[float, float], rebound: dict[float, float], depths: int = 2
) -> pd.DataFrame:
    """Three seeds at each rate and depth, a little apart."""
    random = np.random.default_rng(3)
    left = {BOUNCES: 0.8, COLLAPSES: 0.01, FALLS: 0.7, STAYS: 1.0}
    rows = [
        {
            "run": f"{depth}-{rate}-{seed}",
            "depth": depth,
            "learning_rate": rate,
            "seed": seed,
            "start": 2.5,
            "end": 2.5 * left[course[rate]] * (1 + 0.02 * random.random()),
            "course": course[rate],
            "rebound": rebound[rate] + 0.01 * random.random(),
            "rebound_null": 0.1,
            "rebound_probability": 0.001 if course[rate] == BOUNCES else 0.9,
            "lowest_loss": loss[rate] + 0.01 * random.random(),
            "dip_loss": 6.5,
        }
        for depth in range(1, depths + 1)
        for rate in course
        for seed in range(3)
    ]
    return pd.DataFrame(rows)


COURSE = {1e-5: STAYS, 1e-4: FALLS, 5e-4: BOUNCES, 1e-3: BOUNCES, 1e-2: COLLAPSES}
LOSS = {1e-5: 6.0, 1e-4: 5.5, 5e-4: 4.2, 1e-3: 4.0, 1e-2: 5.0}
REBOUND = {1e-5: 0.0, 1e-4: 0.02, 5e-4: 0.3, 1e-3: 0.4, 1e-2: 0.05}


@pytest.mark.parametrize(
    ("course", "loss", "words"),
    [
        (COURSE, LOSS, ("depends on the learning rate", "rate 0.001;")),
        (
            dict.fromkeys((1e-3, 1e-2), FALLS),
            LOSS,
            ("falls in all 12 decoders, at every rate", "rate 0.001;"),
        ),
        ({1e-3: BOUNCES, 1e-2: FALLS}, LOSS, ("depends on the learning rate", "rate 0.001;")),
        (COURSE, dict.fromkeys(LOSS, 4.0), ("depends on", "do not differ beyond their spread over seeds;")),
    ],
)
def test_the_answer_compares_only_what_differs(
    course: dict[float, str], loss: dict[float, float], words: tuple[str, str]
) -> None:
    made = decoders(course, loss, REBOUND)
    curves = made.assign(variant="real")
    said = answer(Fig8(), {"decoders": made, "curves": curves})
    for part, sentence in zip(words, said, strict=False):
        assert part in sentence
    # One seed out of order is no dependence.
    mixed = decoders(dict.fromkeys((1e-3, 1e-2), FALLS), loss, REBOUND)
    mixed.loc[0, "course"] = BOUNCES
    (first, *_) = answer(Fig8(), {"decoders": mixed, "curves": mixed.assign(variant="real")})
    assert "differs between the learning rates on world-english-bible by no more than chance" in first


def test_what_the_paper_says_holds_of_decoders_that_do_it() -> None:
    made = decoders(COURSE, LOSS, REBOUND)
    found = [
        large_rate_collapses(made),
        rates_differ(made, 0),
        some_rate_bounces(made),
        bounce_is_best(made, 0),
    ]
    assert [claim.verdict for claim in found] == ["holds"] * 4
    assert found[0].measured == pytest.approx(
        (made["end"] / made["start"])[made["course"] == COLLAPSES].max()
    )
    # Ranks within one depth are those of scipy.
    one = decoders(COURSE, LOSS, REBOUND, depths=1)
    expected = spearmanr(one["rebound"], one["lowest_loss"]).statistic
    assert bounce_is_best(one, 0).measured == pytest.approx(expected, abs=1e-12)


def test_a_large_rate_that_does_not_collapse_or_is_not_alone_fails() -> None:
    made = decoders(COURSE, LOSS, REBOUND)
    assert large_rate_collapses(made.assign(end=made["end"].clip(lower=0.3))).verdict == "fails"
    others = made.assign(end=np.where(made["course"] == FALLS, 0.001, made["end"]))
    assert large_rate_collapses(others).verdict == "fails"
    assert large_rate_collapses(made[made["learning_rate"] == 1e-2]).verdict == "not tested"


def test_rates_that_do_not_matter_do_not_differ() -> None:
    random = np.random.default_rng(1)
    verdicts = []
    for _ in range(20):
        made = decoders(COURSE, LOSS, REBOUND, depths=1)
        verdicts.append(rates_differ(made.assign(end=random.normal(size=len(made))), 0).verdict)
    assert verdicts.count("holds") <= 4  # one in twenty of them


def test_a_rebound_is_paid_for_with_the_rates_that_were_tried() -> None:
    made = decoders(COURSE, LOSS, REBOUND)
    assert some_rate_bounces(made.assign(rebound_probability=0.011)).verdict == "fails"  # five times that
    assert some_rate_bounces(made.assign(rebound_probability=0.009)).verdict == "holds"
    assert some_rate_bounces(made.assign(rebound=made["rebound"] * 0.4)).verdict == "fails"


def test_a_bounce_that_does_not_pay_fails() -> None:
    other_way = {rate: -loss for rate, loss in LOSS.items()}
    assert bounce_is_best(decoders(COURSE, other_way, REBOUND), 0).verdict == "fails"
    elsewhere = {**LOSS, 1e-4: 3.0}  # the best rate is one that only falls
    assert bounce_is_best(decoders(COURSE, elsewhere, REBOUND), 0).verdict == "fails"
    few = decoders({rate: COURSE[rate] for rate in (1e-4, 1e-3, 1e-2)}, LOSS, REBOUND)
    claim = bounce_is_best(few, 0)
    assert claim.verdict == "not tested"
    assert (
        "3 learning rates cannot be tested: even a perfect order of them has p = 0.17; use at least four"
        in claim.evidence
    )


def test_rates_that_end_before_the_others_dip_are_left_out() -> None:
    made = decoders(COURSE, LOSS, REBOUND)
    assert len(at_common_loss(made)) == len(made)
    early = made.assign(dip_loss=5.8)  # 1e-5 ends at 6.0; 1e-2 is above it, too, but no small rate
    assert set(at_common_loss(early.assign(lowest_loss=early["lowest_loss"]))["learning_rate"]) == {
        *COURSE,
    } - {1e-5}
    stuck = decoders(COURSE, {**LOSS, 1e-2: 7.0}, REBOUND).assign(dip_loss=5.8)
    assert 1e-2 in set(at_common_loss(stuck)["learning_rate"])
    assert "4 of 5 rates" in bounce_is_best(early, 0).evidence
    without = bounce_is_best(made.drop(columns="dip_loss"), 0)
    assert without.verdict == "not tested"
    assert "run it again" in without.evidence
    # Nobody bounces: there is no dip to wait for.
    assert len(at_common_loss(made.assign(course=FALLS))) == len(made)


def test_the_null_of_the_correlation_moves_whole_rates() -> None:
    """Many seeds and depths are no more evidence than their rates: four orders of six are as good as this."""
    course = dict.fromkeys((1.0, 2.0, 3.0, 4.0), BOUNCES)
    rebound = {1.0: 0.1, 2.0: 0.2, 3.0: 0.3, 4.0: 0.4}
    loss = {1.0: 2.0, 2.0: 4.0, 3.0: 1.0, 4.0: 3.0}  # rank correlation 0: half of the orders are below
    claim = bounce_is_best(decoders(course, loss, rebound, depths=5), 0)
    assert claim.verdict == "fails"
    p = float(claim.evidence.split("p ")[1].split(";")[0])
    assert 0.3 < p < 0.7


def test_the_authors_record(shared: Path) -> None:
    experiment = Fig8(recorded=str(shared / "reference" / "joma_fig6_fig8_wikitext2.csv.gz"))
    tables = experiment.run(Progress(quiet=True))
    assert len(tables["decoders"]) == 141
    wide = pd.read_csv(experiment.recorded)
    lowest = wide.groupby(["layers", "lr", "seed"])["validation_loss"].min()
    ours = tables["decoders"].set_index(["depth", "learning_rate", "seed"])["lowest_loss"]
    np.testing.assert_array_equal(ours.sort_index(), lowest.sort_index())
    claims = {claim.id.removeprefix("fig8."): claim for claim in experiment.claims(tables)}
    assert claims["some_rate_bounces"].verdict == "holds"
    assert claims["authors"].verdict == "not tested"
    assert "141 of 141 runs" in experiment.answer(tables)[-1]


def test_a_rate_of_which_none_was_trained_is_no_smaller_choice(tables: dict[str, pd.DataFrame]) -> None:
    experiment = Fig8(**{**SMALL, "learning_rate": (1e-3, 1e-2, 1e30)})
    claims = experiment.claims(tables)
    assert {claim.verdict for claim in claims} == {"not tested"}
    assert "no decoder of 1 layers at 1e+30, 2 layers at 1e+30 was trained to its end" in claims[0].evidence


def test_a_rate_that_one_depth_lacks_takes_no_part_in_the_correlation() -> None:
    made = decoders(COURSE, LOSS, REBOUND)
    lacking = made[~((made["depth"] == 2) & (made["learning_rate"] == 1e-5))]
    without = made[made["learning_rate"] != 1e-5]
    one, other = bounce_is_best(lacking, 0), bounce_is_best(without.reset_index(drop=True), 0)
    assert (one.measured, one.null) == (other.measured, other.null)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "have no column 'entropy_layer0'"),
        (
            "layers,lr,seed,minibatch,validation_loss,entropy_layer0\n1,0.1,1,0,x,2\n",
            "cannot be read as a table",
        ),
        ("layers,lr,seed,minibatch,validation_loss,entropy_layer0\n", "hold no row; give others"),
        (
            "layers,lr,seed,minibatch,validation_loss,entropy_layer0\n1,0.1,1,0,1,2\n1,0.1,1,0,1,2\n",
            "have a row twice",
        ),
        ("\0\1\2", "cannot be read|have no column"),
        ("", "cannot be read"),
    ],
)
def test_records_that_are_none(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "record.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_record(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        read_record(str(tmp_path))
    path.write_text(
        "layers,lr,seed,minibatch,validation_loss,entropy_layer0\n1,0.1,1,0,1,2\n", encoding="utf-8"
    )
    with pytest.raises(InputError, match=r"hold no row at the learning rate 0\.5; give others"):
        read_record(str(path), learning_rates=[0.5])
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"layers,lr\n" * 50)[:20])
    with pytest.raises(InputError, match="cannot be read"):
        read_record(str(tmp_path / "cut.csv.gz"))


def test_the_rank_correlation_within_groups_is_that_of_centred_ranks() -> None:
    """By hand: ranks of each group about the group's own mean, as shares of its size; ties share a rank."""
    x = pd.Series([1.0, 2.0, 3.0, 10.0, 40.0, 20.0, 20.0])
    y = pd.Series([5.0, 1.0, 3.0, 2.0, 9.0, 4.0, 3.0])
    groups = pd.Series(["a"] * 3 + ["b"] * 4)
    a = [np.array([-1, 0, 1]) / 3, np.array([1, -1, 0]) / 3]
    b = [np.array([-1.5, 1.5, 0, 0]) / 4, np.array([-1.5, 1.5, 0.5, -0.5]) / 4]
    one, two = (np.concatenate(parts) for parts in zip(a, b, strict=True))
    assert _correlation_within(x, y, groups) == pytest.approx(one @ two / np.sqrt((one @ one) * (two @ two)))
    assert _correlation_within(100 * (groups == "b") + x, y, groups) == pytest.approx(
        _correlation_within(x, y, groups)
    )


def test_a_collapse_is_below_a_tenth_of_its_own_start() -> None:
    """A start of 2 nats and an end of .15: a collapse; of .25: none."""
    runs = ["low", "high"]
    bounces = pd.DataFrame(
        {
            "run": runs,
            "seed": 0,
            "depth": 1,
            "layer": 0,
            "metric": "attention_entropy",
            "variant": "real",
            "learning_rate": 1e-3,
            "start": 2.0,
            "end": [0.15, 0.25],
            "dip_step": 5,
            "depth_of_dip": 1.8,
            "dip_null": 0.1,
            "dip_probability": 0.01,
            "rebound": 0.0,
            "rebound_null": 0.1,
            "rebound_probability": 1.0,
        }
    )
    curves = pd.DataFrame({"run": runs, "metric": "validation_loss", "value": 1.0, "step": 5})
    assert _decoders(curves, bounces).set_index("run")["course"].to_dict() == {
        "low": COLLAPSES,
        "high": FALLS,
    }

from __future__ import annotations

import math

import numpy as np
import pytest

from joma.core.errors import InputError
from joma.core.figures import style
from joma.core.progress import Progress
from joma.core.threads import limit_threads
from joma.experiments.beyond.block_flow import BlockFlow
from joma.experiments.beyond.block_flow.cases import cases
from joma.experiments.beyond.block_flow.run import one_sample, rebound

SMALL = BlockFlow(cases=2, drawn=20, phase_points=3, blocks=2, starts=(0.8, 0.6))


@pytest.fixture(scope="module")
def tables():
    return SMALL.run(Progress(quiet=True))


def test_the_answer_is_the_claims_numbers(tables):
    found = {claim.id.partition(".")[2]: claim for claim in SMALL.claims(tables)}
    rest, depth, law = SMALL.answer(tables)
    assert f"to {found['rests'].measured:.1g} of |mu|" in rest
    assert f"off by {found['rests'].printed_error:.2g} or more" in rest
    assert f"by {found['depth'].measured:.0%}, Eq. 6 by {found['depth'].null:.0%}" in depth
    assert f"{found['law'].measured:.1%}" in law


def test_claims(tables):
    verdicts = {claim.id: claim.verdict for claim in SMALL.claims(tables)}
    assert verdicts.pop("block_flow.rests") == "corrected"
    assert verdicts.pop("block_flow.rests_sharp") == "corrected"
    assert verdicts.pop("block_flow.rates") == "corrected"
    assert verdicts.pop("block_flow.centre") == "fails"
    assert set(verdicts.values()) == {"holds"}


def test_blocks_turn_at_the_boundary_and_the_linear_drift_costs_what_the_notes_say(tables):
    slopes = tables["boundary"].query("metric == 'slope'").groupby("factor")["value"]
    assert slopes.max()[0.95] < 0 < slopes.min()[1.05]
    wide = tables["starts"].pivot_table(index=["start", "rho_minus"], columns="run", values="value")
    cost = 1 - wide["full C"] / wide["population"]
    assert cost[0.6].to_numpy() == pytest.approx([0.12, 0.18], abs=0.006)  # rho_- = -1 and -0.5


def test_the_figure_is_drawn(tables):
    with style():
        assert len(SMALL.draw(tables).axes) == 4


def test_every_claim_has_its_null(tables):
    for claim in SMALL.claims(tables):
        if claim.id not in ("block_flow.rests_sharp", "block_flow.invariant"):  # a misprint; an identity
            assert claim.null is not None, claim.id
            assert claim.null_description


@pytest.mark.parametrize(
    ("claim", "table", "rows", "factor"),
    [
        ("law", "law", "run == 'law' and metric == 'rebound'", 1.02),
        ("rates", "rates", "metric == 'law'", 1.02),
        ("invariant", "rests", "metric == 'drift of z - kappa v^2/2'", 1e3),
        ("bounces", "rests", "metric == 'rebound'", 0.0),
        ("depth", "courses", "run == 'corrected law' and metric == 'entropy'", 0.7),
        ("depth", "courses", "run == 'Eq. 6' and metric == 'entropy'", 1e3),
        ("order", "courses", "run == 'block' and metric == 'half learned'", -1.0),
        ("cost_of_c", "costs", "run == 'C = beta_1 I' or run == 'full C'", 0.0),
        ("always", "phases", "spread < 1", 0.0),
        ("boundary", "boundary", "factor == 0.95", -1.0),
        ("boundary", "boundary", "factor == 1.05", -1.0),
        ("cost_of_start", "starts", "run == 'full C' and start == 0.8", 0.8),
    ],
)
def test_the_claims_fail_on_other_numbers(tables, claim, table, rows, factor):
    changed = tables[table].copy()
    at = changed.query(rows).index
    changed.loc[at, "value"] = factor * changed.loc[at, "value"]
    verdicts = {c.id: c.verdict for c in SMALL.claims({**tables, table: changed})}
    assert verdicts[f"block_flow.{claim}"] == "fails"


def test_what_a_start_costs_takes_two_starts(tables):
    one = tables["starts"].query("start == 0.6")
    verdicts = {claim.id: claim.verdict for claim in SMALL.claims({**tables, "starts": one})}
    assert verdicts["block_flow.cost_of_start"] == "not tested"


def test_the_claims_see_a_block_that_rests_where_the_print_says(tables):
    swapped = dict(tables)
    near, far = "attended weight's distance from uniform's rest", "weight's distance from uniform's rest"
    swapped["rests"] = tables["rests"].replace({"metric": {near: far, far: near}})
    verdicts = {claim.id: claim.verdict for claim in SMALL.claims(swapped)}
    assert verdicts["block_flow.rests"] == "fails"


@pytest.mark.slow
def test_fifty_settings_rest_where_uniform_attention_does():
    assert len(cases(50)) == 50
    with limit_threads(1):
        rests = {case.name: one_sample(case, 24_000, 0)[0] for case in cases(50)}
    for name, found in rests.items():
        assert found["attended weight's distance from uniform's rest"] < 1e-3, name
        assert found["sharp: uniform moves from the attended weight"] < 1e-3, name
        if found["distance of the two laws"] > 0.02:
            assert found["weight's distance from uniform's rest"] > 0.01, name
            moved = found["sharp: uniform moves from the weight"]
            assert math.isnan(moved) or moved > 0.01, name


def test_a_dead_weight_is_no_rest():
    # A far ball of one side: the weight at which the block rests opens its ReLU for no sample.
    name = "uniform ball, ReLU, n = 3, saliency 5.88"
    dead = next(case for case in cases(50) if case.name.startswith(name))
    found, _ = one_sample(dead, 2_000, 0)
    assert math.isnan(found["sharp: uniform moves from the weight"])
    assert found["weight's distance from uniform's rest"] > 0.3
    alive, _ = one_sample(cases(1)[0], 2_000, 0)
    assert alive["sharp: uniform moves from the weight"] > 0.01


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="seeds"):
        BlockFlow(seeds=1)


def test_a_rebound_is_from_the_least_to_the_last():
    assert rebound(np.array([3.0, 1.0, 2.0, 1.5])) == 0.5
    assert rebound(np.array([3.0, 2.0, 1.0])) == 0.0

from __future__ import annotations

import pytest

from joma.checks import block, invariants

GROUPS = {**block.CHECKS, **invariants.CHECKS}
CORRECTED = {
    "block.superposition_sign",
    "block.softmax_loss_gradient",
    "block.footnote",
    "theorem1.linear_rates",
    "theorem1.exp_rates",
    "theorem1_softmax.sign",
    "theorem1_softmax.missing_term",
    "theorem1_softmax.summed_hypothesis",
}


@pytest.fixture(scope="module")
def claims():
    return {claim.id: claim for group in GROUPS.values() for claim in group()}


def test_ids_begin_with_their_group_and_are_unique():
    made = {name: [claim.id for claim in group()] for name, group in GROUPS.items()}
    assert all(id.startswith(name + ".") for name, ids in made.items() for id in ids)
    every = [id for ids in made.values() for id in ids]
    assert len(set(every)) == len(every) >= 25


def test_misprints_are_proven_and_everything_else_holds(claims):
    assert {id for id, claim in claims.items() if claim.verdict == "corrected"} == CORRECTED
    assert {claim.verdict for id, claim in claims.items() if id not in CORRECTED} == {"holds"}


def test_printed_statements_fail_by_much_more_than_the_tolerance(claims):
    for id in CORRECTED:
        claim = claims[id]
        assert claim.measured <= claim.tolerance < claim.printed_error / 10


def test_what_is_said_to_vanish_does_not_vanish_elsewhere(claims):
    for claim in claims.values():
        if claim.null is not None:
            assert claim.null > 100 * claim.measured


def test_the_checks_see_a_wrong_formula(monkeypatch):
    right = invariants.invariants.logit_coefficient
    monkeypatch.setattr(
        invariants.invariants, "logit_coefficient", lambda *args, **rates: 1.01 * right(*args, **rates)
    )
    verdicts = {claim.id: claim.verdict for group in invariants.CHECKS.values() for claim in group()}
    for id in ("theorem1.linear", "theorem1.exp", "theorem1.exp_rates", "theorem1_softmax.integral_identity"):
        assert verdicts[id] == "fails"

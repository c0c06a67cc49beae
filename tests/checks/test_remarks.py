"""The papers' remarks as checks: they come out as derived, and turn where they should."""

from __future__ import annotations

import numpy as np
import pytest

from joma.checks import coverage, feature_limit, local_tokens, remarks, scan_snap_steps

EXPECTED = {
    "value_matrix.merged": "corrected",
    "token_salience.log_odds": "corrected",
    "remark_a4.signs": "corrected",
    "cdag_feature.limit": "corrected",
    "cdag_feature.spread": "corrected",
    "snap_local.roles": "fails",
}
GROUPS = {**remarks.CHECKS, **feature_limit.CHECKS, **local_tokens.CHECKS}


def verdicts(group):
    return {claim.id: claim.verdict for claim in group()}


@pytest.mark.parametrize("name", GROUPS)
def test_the_group_comes_out_as_derived(name):
    for claim in GROUPS[name]():
        assert claim.id.startswith(f"{name}.")
        assert claim.verdict == EXPECTED.get(claim.id, "holds"), claim


def test_another_salience_is_told(monkeypatch):
    monkeypatch.setattr(remarks, "token_salience", lambda p, q: np.log(p / q))
    assert verdicts(remarks.CHECKS["token_salience"])["token_salience.log_odds"] == "fails"


def test_other_signs_are_told(monkeypatch):
    monkeypatch.setattr(remarks, "opposite_signs_from", lambda law: 0.0)
    assert verdicts(remarks.CHECKS["remark_a4"])["remark_a4.signs"] == "fails"


def test_another_limit_is_told(monkeypatch):
    monkeypatch.setattr(feature_limit, "background_response", lambda *_, share: 0.0)
    monkeypatch.setattr(feature_limit, "spread_correlation", lambda s, **_: np.ones(len(s)))
    found = verdicts(feature_limit.CHECKS["cdag_feature"])
    assert set(found.values()) == {"fails"}


@pytest.mark.slow
def test_the_law_of_coverage_holds_and_another_is_told(monkeypatch):
    found = {claim.id: claim for claim in coverage.coverage_group()}
    assert {claim.verdict for claim in found.values()} == {"holds"}
    assert found["coverage.nodes"].null > 10
    monkeypatch.setattr(coverage, "arrival_probability", lambda s, **_: np.full(len(s), 0.9))
    assert verdicts(coverage.coverage_group)["coverage.nodes"] == "fails"


@pytest.mark.slow
def test_with_twenty_classes_the_signs_turn_when_the_last_is_drawn():
    """K (ln K + 3) = 119 steps are enough in 12 of 12 runs, K^2 = 400 are not needed."""
    (claim,) = scan_snap_steps.snap_coupons()
    assert claim.verdict == "holds"
    assert "12 runs" in claim.evidence
    assert "K = 20" in claim.evidence
    steps = next(c for c in claim.criterion if c.than == "K^2")
    assert steps.measured < 20 * (np.log(20) + 3) + 60

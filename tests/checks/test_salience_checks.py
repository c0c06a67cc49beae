"""The claims of Lemmas 1-7, Theorems 3-4, Eq. 6 and Fig. 4: verdicts, and that they can fail."""

from __future__ import annotations

import pytest

from joma.checks import critical_points, fig4, isotropic, salience

CHECKS = {**isotropic.CHECKS, **critical_points.CHECKS, **salience.CHECKS, **fig4.CHECKS}
CORRECTED = {
    "lemma1.expectation",
    "lemma1.always_open",
    "lemma1.independent_of_v",
    "lemma2.flow",
    "lemma5.derivatives",
    "lemma5.step",
    "lemma4.sufficient",
    "lemma4.balance",
    "lemma4.ratio_range",
    "theorem3.matrix",
    "theorem3.sign",
    "theorem3.eigenvalue_along",
    "theorem4.exponent_after_88",
    "theorem4.condition",
    "theorem4.remark_exponent",
    "fig4.caption_entropy",
    "fig4.script",
}


@pytest.fixture(scope="module")
def claims():
    return {group: check() for group, check in CHECKS.items()}


def test_verdicts(claims):
    found = [claim for group in claims.values() for claim in group]
    assert len(found) >= 35
    assert {claim.id for claim in found if claim.verdict == "corrected"} == CORRECTED
    assert {claim.id for claim in found if claim.verdict not in ("corrected", "holds")} == set()


def test_ids_begin_with_their_group_and_are_unique(claims):
    ids = [claim.id for group in claims.values() for claim in group]
    assert len(set(ids)) == len(ids)
    assert all(claim.id.startswith(f"{group}.") for group, found in claims.items() for claim in found)


def test_every_claim_says_how(claims):
    for group in claims.values():
        for claim in group:
            assert claim.source.startswith("JoMA")
            assert claim.evidence or claim.null_description


def test_a_wrong_lemma_5_would_be_seen(monkeypatch):
    monkeypatch.setattr(isotropic, "theta_derivatives", isotropic.theta_derivatives_printed)
    verdicts = {claim.id: claim.verdict for claim in isotropic.lemma5()}
    assert verdicts["lemma5.derivatives"] == "fails"


def test_a_wrong_theorem_3_would_be_seen(monkeypatch):
    def halved(*args, **kwargs):
        exact = original(*args, **kwargs)
        return type(exact)(beta_1=exact.beta_1, beta_2=exact.beta_2 / 2, s=exact.s, norm=exact.norm)

    original = critical_points.linearise
    monkeypatch.setattr(critical_points, "linearise", halved)
    verdicts = {claim.id: claim.verdict for claim in critical_points.theorem3()}
    assert verdicts["theorem3.matrix"] == "fails"
    assert verdicts["theorem3.eigenvalue_along"] == "fails"


def test_a_wrong_sharp_constant_would_be_seen(monkeypatch):
    monkeypatch.setattr(salience, "sharp_bound", lambda: (1.9, 0.7))
    verdicts = {claim.id: claim.verdict for claim in salience.theorem4()}
    assert verdicts["theorem4.bound_88"] == "fails"
    assert verdicts["theorem4.lambda"] == "fails"

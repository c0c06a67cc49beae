from __future__ import annotations

import pytest

from joma.checks import winner_take_all
from joma.core.claim import Claim


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.id: claim for check in winner_take_all.CHECKS.values() for claim in check()}


def test_every_claim_but_one_stands(claims) -> None:
    verdicts = {name: claim.verdict for name, claim in claims.items()}
    # bbar cannot stay uniform while a token wins, so that the premise of the softmax remark undoes itself.
    assert verdicts.pop("theorem2.softmax_premise") == "fails"
    assert set(verdicts.values()) == {"holds", "corrected"}
    assert len(claims) >= 11
    assert all(name.startswith("theorem2.") for name in claims)


def test_misprints_fail_by_far(claims) -> None:
    corrected = [claim for claim in claims.values() if claim.verdict == "corrected"]
    assert len(corrected) >= 3
    for claim in corrected:
        assert claim.printed_error > 1e6 * claim.tolerance
        assert claim.correction


def test_nulls_would_show(claims) -> None:
    for name in ("theorem2.nodes", "theorem2.softmax_clock"):
        assert claims[name].null > 1e6 * claims[name].measured

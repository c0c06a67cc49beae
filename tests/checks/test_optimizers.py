from __future__ import annotations

import pytest

from joma.checks import optimizers
from joma.core.claim import Claim


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.id: claim for check in optimizers.CHECKS.values() for claim in check()}


def test_all_stand_and_bear_their_groups_names(claims) -> None:
    assert {claim.verdict for claim in claims.values()} == {"holds"}
    assert {name.partition(".")[0] for name in claims} == set(optimizers.CHECKS)
    assert len(claims) >= 12


def test_each_law_beats_the_statement_it_replaces(claims) -> None:
    laws = [claim for claim in claims.values() if claim.null is not None and claim.id != "adam.breaks"]
    assert len(laws) >= 8
    for claim in laws:
        assert claim.null > 50 * claim.tolerance, claim.id


def test_plain_descent_keeps_what_adam_breaks(claims) -> None:
    assert claims["adam.breaks"].null < 1e-2 < claims["adam.breaks"].measured

from __future__ import annotations

import pytest

from joma.checks import coherence
from joma.core.claim import Claim


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    return {claim.id: claim for check in coherence.CHECKS.values() for claim in check()}


def test_all_stand(claims) -> None:
    assert {claim.verdict for claim in claims.values()} == {"holds"}
    assert len(claims) >= 15
    assert all(name.startswith("coherence.") for name in claims)


@pytest.mark.parametrize("kind", ["linear", "exp", "softmax"])
def test_the_survivor_is_no_triviality(claims, kind: str) -> None:
    claim = claims[f"coherence.survivor_{kind}"]
    assert claim.null > 1e6 * max(claim.measured, 1e-15)


def test_the_bound_is_of_use(claims) -> None:
    assert claims["coherence.bound_exp"].measured > 0.01

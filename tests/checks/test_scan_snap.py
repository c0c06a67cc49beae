from __future__ import annotations

import pytest

from joma.checks.scan_snap import CHECKS

EXPECTED = {
    "snap_theorem1.signs_unlike": "corrected",
    "snap_theorem4.gain": "corrected",
    "snap_theorem4.hypothesis": "fails",
}
"""Claims that do not simply hold; the last is the paper's hypothesis, which simulations do not confirm."""


@pytest.mark.parametrize("group", CHECKS)
def test_the_group_comes_out_as_derived(group):
    claims = CHECKS[group]()
    assert claims
    for claim in claims:
        assert claim.id.startswith(f"{group}.")
        assert claim.verdict == EXPECTED.get(claim.id, "holds"), claim


def test_the_hypothesis_fails_by_more_than_its_tolerance_tenfold_or_so():
    claim = {c.id: c for c in CHECKS["snap_theorem4"]()}["snap_theorem4.hypothesis"]
    assert claim.measured > 5 * claim.tolerance

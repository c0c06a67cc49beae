"""A claim's verdict flips when a measured value crosses its printed threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joma.core.claim import Claim, Condition, Criterion, Statement


def rejudged(claim: Claim, conditions: Sequence[Condition]) -> str:
    """The verdict of the claim with other conditions."""
    statement = Statement(claim.id, claim.source, claim.statement)
    return statement.judge(Criterion(tuple(conditions)), measured=0.0).verdict


def moved(condition: Condition, holds: bool) -> Condition:
    """The condition with a measured number just on this side of the threshold that is printed."""
    printed = float(condition.bound().removesuffix(")").removesuffix(condition.unit).split()[-1].strip("("))
    step = max(abs(printed) * 1e-3, 1e-12)
    upwards = condition.relation in ("at least", "above")
    if condition.relation == "exactly":
        return replace(condition, measured=condition.threshold if holds else printed + step)
    return replace(condition, measured=printed + step if upwards == holds else printed - step)


def assert_flips(claim: Claim) -> None:
    """Each condition decides: across its printed threshold the verdict is another."""
    assert claim.criterion, claim.id
    good = [moved(condition, True) for condition in claim.criterion]
    assert rejudged(claim, good) == "holds", claim.id
    for place, condition in enumerate(claim.criterion):
        bad = [*good[:place], moved(condition, False), *good[place + 1 :]]
        assert rejudged(claim, bad) == "fails", (claim.id, condition)
    holds = all(condition.holds for condition in claim.criterion)
    assert (claim.verdict in ("holds", "corrected")) == holds, claim.id

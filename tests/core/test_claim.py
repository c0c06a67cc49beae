from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flips import assert_flips
from joma.checks.catalog import run_checks
from joma.core.claim import (
    Claim,
    Criterion,
    Statement,
    above,
    at_least,
    at_most,
    below,
    between,
    equal,
    within_error,
)
from joma.core.errors import InputError
from joma.report.terminal import claims_as_text, tally

STATEMENT = Statement("group.name", "JoMA Thm 2", "all is well")


def corrected(printed_error: float, error: float) -> Claim:
    statement = Statement("a.b", "JoMA Eq. 4", "erf(v/2)")
    return statement.correct("erf(v/sqrt 2)", printed_error=printed_error, error=error, tolerance=1e-6)


@pytest.mark.parametrize(
    ("printed_error", "error", "verdict"),
    [
        (0.1, 1e-9, "corrected"),
        (0.1, 1e-5, "fails"),  # the correction does not hold
        (5e-6, 1e-9, "fails"),  # the print is not wrong by ten tolerances
        (0.1, math.nan, "fails"),
        (math.nan, 1e-9, "fails"),
    ],
)
def test_a_correction_needs_both_numbers(printed_error: float, error: float, verdict: str) -> None:
    assert corrected(printed_error, error).verdict == verdict


def test_judging() -> None:
    assert STATEMENT.judge(at_least(1.0, 1.0, of="share")).verdict == "holds"
    assert STATEMENT.judge(at_least(1.0, 0.0, of="share")).verdict == "fails"
    assert STATEMENT.judge(within_error(1e-8, 1e-9)).verdict == "holds"
    assert STATEMENT.judge(within_error(1e-8, math.nan)).verdict == "fails"
    assert STATEMENT.not_tested("no text").evidence == "no text"


def test_json_is_strict() -> None:
    fields = STATEMENT.judge(above(0.0, math.nan, of="fall"), null=math.inf).as_dict()
    text = json.dumps(fields, allow_nan=False)
    assert Claim.from_dict(json.loads(text)).measured is None


def test_unknown_verdict() -> None:
    with pytest.raises(InputError, match="verdict 'true' is none of"):
        replace(STATEMENT.not_tested("no text"), verdict="true")  # type: ignore[arg-type]


def test_terminal_shows_what_decides() -> None:
    text = claims_as_text([corrected(0.1, 1e-9), STATEMENT.not_tested("no text was given")])
    assert "CORRECTED" in text
    assert "right is: erf(v/sqrt 2)" in text
    assert "as printed 0.1, as corrected 1e-09" in text
    assert "NOT TESTED JoMA Thm 2: all is well" in text
    assert "no text was given" in text
    assert text.endswith("2 claims: 1 corrected, 1 not tested")
    assert tally([]) == "0 claims: none"


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
COMPARISONS: dict[str, tuple[Callable[..., Criterion], Callable[[float, float], bool]]] = {
    "at least": (at_least, operator.ge),
    "at most": (at_most, operator.le),
    "above": (above, operator.gt),
    "below": (below, operator.lt),
    "exactly": (equal, operator.eq),
}


@pytest.mark.parametrize("relation", COMPARISONS)
@given(threshold=NUMBERS, measured=NUMBERS)
def test_a_condition_compares(relation: str, threshold: float, measured: float) -> None:
    make, compare = COMPARISONS[relation]
    for value in (measured, threshold):
        claim = STATEMENT.judge(make(threshold, value, of="fall", unit="nats"))
        assert claim.verdict == ("holds" if compare(value, threshold) else "fails")
        assert claim.measured == value
        assert claim.expected == f"fall {relation} {threshold:.4g} nats"


@pytest.mark.parametrize("relation", COMPARISONS)
@given(pairs=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_the_worst_element_decides_against_its_own_threshold(
    relation: str, pairs: list[tuple[float, float]]
) -> None:
    make, compare = COMPARISONS[relation]
    measured, thresholds = np.array(pairs).T
    (condition,) = make(thresholds, measured, of="fall").conditions
    assert condition.holds == all(compare(a, b) for a, b in pairs)
    assert (condition.measured, condition.threshold) in pairs
    (condition,) = make(pairs[0][1], measured, of="fall").conditions
    assert condition.holds == all(compare(a, pairs[0][1]) for a, _ in pairs)


@pytest.mark.parametrize("relation", COMPARISONS)
@pytest.mark.parametrize("measured", [math.nan, [1.0, math.nan, 1.0], []])
def test_no_number_never_holds(relation: str, measured: float | list[float]) -> None:
    make, _ = COMPARISONS[relation]
    assert STATEMENT.judge(make(1.0, measured, of="fall")).verdict == "fails"
    assert STATEMENT.judge(make([1.0, math.nan], [2.0, 1.0], of="fall")).verdict == "fails"


def test_infinities_compare() -> None:
    assert above(1.0, [math.inf, 2.0], of="fall").conditions[0].measured == 2.0
    assert at_least([math.inf, 3.0], [math.inf, 2.0], of="fall").conditions[0].measured == 2.0


def test_a_conjunction_needs_all() -> None:
    for rise, share, verdict in ((0.2, 0.6, "holds"), (0.0, 0.6, "fails"), (0.2, 0.5, "fails")):
        criterion = at_least(0.1, rise, of="rise", across="in every run", unit="nats") & above(
            0.5, share, of="share", than="that of the null"
        )
        claim = STATEMENT.judge(criterion)
        assert (claim.verdict, claim.measured, claim.tolerance) == (verdict, rise, None)
        assert claim.expected == ("rise at least 0.1 nats in every run; share above that of the null (0.5)")


def test_a_number_between_two() -> None:
    for order, verdict in ((0.85, "fails"), (0.95, "holds"), (1.15, "fails")):
        claim = STATEMENT.judge(between(0.9, 1.1, order, of="order", across="in every run"))
        assert (claim.verdict, claim.measured) == (verdict, order)
        assert claim.expected == "order at least 0.9 and at most 1.1 in every run"


def test_a_tolerance_is_one_of_an_error() -> None:
    claim = STATEMENT.judge(above(0.5, 0.7, of="share") & within_error(1e-8, 1e-9))
    assert (claim.tolerance, claim.measured, claim.verdict) == (1e-8, 0.7, "holds")
    assert claim.expected == "share above 0.5; error at most 1e-08"


def test_another_number_may_be_told() -> None:
    claim = STATEMENT.judge(below(0.01, 0.001, of="p"), measured=0.4)
    assert (claim.measured, claim.verdict) == (0.4, "holds")
    assert STATEMENT.judge(below(0.01, 0.001, of="p"), measured=math.nan).verdict == "fails"


def test_a_word_that_no_condition_has() -> None:
    with pytest.raises(TypeError, match="accross"):
        above(0.5, 0.7, of="share", accross="in every run")  # type: ignore[call-arg]


def test_thresholds_of_another_number_than_measured() -> None:
    with pytest.raises(InputError, match="fall: 2 thresholds for 3 measured numbers"):
        above([1.0, 2.0], [1.0, 2.0, 3.0], of="fall")


@given(
    relation=st.sampled_from(sorted(COMPARISONS)),
    threshold=NUMBERS,
    measured=NUMBERS,
    unit=st.sampled_from(["", "nats"]),
    than=st.sampled_from(["", "the null"]),
)
def test_a_verdict_flips_at_the_printed_threshold(
    relation: str, threshold: float, measured: float, unit: str, than: str
) -> None:
    make, _ = COMPARISONS[relation]
    assert_flips(STATEMENT.judge(make(threshold, measured, of="fall", unit=unit, than=than)))


@pytest.mark.parametrize("group", ["lemma6", "lemma7", "theorem3"])
def test_the_claims_of_checks_flip_at_their_printed_thresholds(group: str) -> None:
    for claim in run_checks([group]):
        assert_flips(claim)


def test_a_criterion_survives_its_file() -> None:
    claim = STATEMENT.judge(
        at_least(0.1, 0.2, of="rise", across="in every run", unit="nats") & above(0.5, math.nan, of="share")
    )
    read = Claim.from_dict(json.loads(json.dumps(claim.as_dict(), allow_nan=False)))
    assert read.criterion[0] == claim.criterion[0]
    assert read.criterion[1].measured is None
    assert not read.criterion[1].holds
    assert read.expected == claim.expected


def test_a_claim_from_before_criteria_is_read() -> None:
    fields = STATEMENT.judge(above(0.5, 0.7, of="share")).as_dict()
    del fields["criterion"]
    assert Claim.from_dict(fields).criterion == ()

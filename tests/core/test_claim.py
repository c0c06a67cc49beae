from __future__ import annotations

import json
import math

import pytest

from joma.core.claim import Claim, correct, judge, not_tested, within
from joma.core.errors import InputError
from joma.report.terminal import claims_as_text, tally

FACTS = {"id": "group.name", "source": "JoMA Thm 2", "statement": "all is well"}


def corrected(printed_error: float, error: float) -> Claim:
    return correct(
        id="a.b",
        source="JoMA Eq. 4",
        printed="erf(v/2)",
        right="erf(v/sqrt 2)",
        printed_error=printed_error,
        error=error,
        tolerance=1e-6,
    )


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
    assert judge(True, **FACTS, expected="1", measured=1.0).verdict == "holds"
    assert judge(False, **FACTS, expected="1", measured=0.0).verdict == "fails"
    assert judge(True, **FACTS, expected="1", measured=math.nan).verdict == "fails"
    assert within(1e-9, 1e-8, **FACTS).verdict == "holds"
    assert within(math.nan, 1e-8, **FACTS).verdict == "fails"
    assert not_tested(**FACTS, reason="no text").evidence == "no text"


def test_json_is_strict() -> None:
    fields = judge(False, **FACTS, expected="1", measured=math.nan, null=math.inf).as_dict()
    text = json.dumps(fields, allow_nan=False)
    assert Claim(**json.loads(text)).measured is None


def test_unknown_verdict() -> None:
    with pytest.raises(InputError, match="verdict 'true' is none of"):
        Claim(**FACTS, expected="", measured=None, tolerance=None, verdict="true")  # type: ignore[arg-type]


def test_terminal_shows_what_decides() -> None:
    text = claims_as_text([corrected(0.1, 1e-9), not_tested(**FACTS, reason="no text was given")])
    assert "CORRECTED" in text
    assert "right is: erf(v/sqrt 2)" in text
    assert "as printed 0.1, as corrected 1e-09" in text
    assert "NOT TESTED JoMA Thm 2: all is well" in text
    assert "no text was given" in text
    assert text.endswith("2 claims: 1 corrected, 1 not tested")
    assert tally([]) == "0 claims: none"

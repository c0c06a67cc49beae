"""Claims as a terminal shows them: one name for a verdict, and what was expected called so."""

from __future__ import annotations

import dataclasses

from joma.core.claim import above, statements
from joma.report.answer import summary, verdict_words
from joma.report.terminal import claims_as_text, tally


def test_a_claim_line_says_what_was_expected_and_a_verdict_has_one_name() -> None:
    statement = statements({"made.up": "a test | it is positive"})["made.up"]
    claim = statement.judge(above(0, -0.25, of="a correlation"))
    text = " ".join(claims_as_text([claim]).split())
    assert f"measured -0.25 (expected: {claim.expected})" in text
    assert text.startswith("FAILS a test: it is positive")
    assert tally([claim]) == "1 claim: 1 fails"
    assert tally([claim, dataclasses.replace(claim, id="made.again")]) == "2 claims: 2 fail"
    assert summary([claim])[0].endswith("and 1 fails.")
    assert verdict_words("papers")["fails"] == "fails"

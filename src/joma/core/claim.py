"""A claim: a sentence of a paper, tested."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict

from joma.core.errors import InputError
from joma.core.files import Json

Verdict = Literal["holds", "corrected", "fails", "not tested"]
VERDICTS: tuple[Verdict, ...] = ("holds", "corrected", "fails", "not tested")


class Facts(TypedDict):
    """What a claim says, tested or not: for those that are judged in one case and left out in another."""

    id: str
    source: str
    statement: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source states, what was expected of it, and what was measured.

    Build one with ``judge``, ``correct`` or ``not_tested``, which derive the verdict
    from the numbers, rather than by hand.
    """

    id: str
    """Dotted name, the group or experiment first: ``theorem2.trajectory``, ``fig6.rebound``."""
    source: str
    """Where it is stated: ``JoMA Thm 2, Eq. 4``."""
    statement: str
    """The statement as printed (or as tested), in one sentence."""
    expected: str
    """What the measurement should show if the statement is true, in words or as a number."""
    measured: float | None
    """The number that decides. For ``corrected``: the error of the corrected statement."""
    tolerance: float | None
    """How far ``measured`` may be from what is expected, in the same unit."""
    verdict: Verdict
    correction: str = ""
    """What is right instead (verdict ``corrected``)."""
    printed_error: float | None = None
    """Error of the printed statement, beside ``measured`` (verdict ``corrected``)."""
    null: float | None = None
    """The same number where the statement must *not* show: untrained, shuffled, time-shuffled."""
    null_description: str = ""
    """Which null it was."""
    evidence: str = ""
    """How it was computed, or, for ``not tested``, why it was not."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InputError(f"claim {self.id}: verdict {self.verdict!r} is none of {VERDICTS}.")
        numbers = ("measured", "tolerance", "printed_error", "null")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float | None if field.name in numbers else str):
                raise InputError(f"claim {self.id}: {field.name} = {value!r} has the wrong type.")

    def as_dict(self) -> dict[str, Json]:
        """The fields, ready for JSON (which knows no NaN or infinity: they become None)."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in dataclasses.asdict(self).items()
        }


class Stated(TypedDict):
    """What is stated and where, before it is judged: `judge(..., **stated)`, `not_tested(**stated, ...)`."""

    id: str
    source: str
    statement: str


def judge(
    holds: bool,
    *,
    id: str,
    source: str,
    statement: str,
    expected: str,
    measured: float,
    tolerance: float | None = None,
    null: float | None = None,
    null_description: str = "",
    evidence: str = "",
) -> Claim:
    """A claim that was tested: ``holds`` or ``fails``; a measurement that is NaN always fails."""
    measured = float(measured)
    return Claim(
        id=id,
        source=source,
        statement=statement,
        expected=expected,
        measured=measured,
        tolerance=tolerance,
        verdict="holds" if holds and not math.isnan(measured) else "fails",
        null=None if null is None else float(null),
        null_description=null_description,
        evidence=evidence,
    )


def within(
    measured_error: float,
    tolerance: float,
    *,
    id: str,
    source: str,
    statement: str,
    evidence: str = "",
    null: float | None = None,
    null_description: str = "",
) -> Claim:
    """A claim that holds when an error is at most the tolerance."""
    return judge(
        bool(measured_error <= tolerance),
        id=id,
        source=source,
        statement=statement,
        expected=f"error at most {tolerance:.3g}",
        measured=measured_error,
        tolerance=tolerance,
        null=null,
        null_description=null_description,
        evidence=evidence,
    )


def correct(
    *,
    id: str,
    source: str,
    printed: str,
    right: str,
    printed_error: float,
    error: float,
    tolerance: float,
    evidence: str = "",
    null: float | None = None,
    null_description: str = "",
) -> Claim:
    """A misprint: the printed statement must fail where the corrected one holds.

    ``corrected`` if the corrected statement's ``error`` is within ``tolerance`` and the printed
    statement's error is more than ten times that tolerance. If the corrected statement fails, so
    does the claim. If the printed statement is not wrong by that much, the erratum is not proven,
    and the claim ``fails`` too: a reader must not be told of a misprint that is none.
    """
    proven = error <= tolerance and printed_error > 10 * tolerance
    return Claim(
        id=id,
        source=source,
        statement=printed,
        correction=right,
        expected=f"corrected: error at most {tolerance:.3g}; printed: more than {10 * tolerance:.3g}",
        measured=float(error),
        tolerance=tolerance,
        verdict="corrected" if proven else "fails",
        printed_error=float(printed_error),
        null=None if null is None else float(null),
        null_description=null_description,
        evidence=evidence,
    )


def not_tested(*, id: str, source: str, statement: str, reason: str) -> Claim:
    """A claim that this run could not test, with the reason."""
    return Claim(
        id=id,
        source=source,
        statement=statement,
        expected="",
        measured=None,
        tolerance=None,
        verdict="not tested",
        evidence=reason,
    )


def withheld(claims: Iterable[Claim], reason: str) -> list[Claim]:
    """The claims, none of them judged: of those that were, the reason comes before their evidence."""
    return [
        claim
        if claim.verdict == "not tested"
        else not_tested(
            id=claim.id,
            source=claim.source,
            statement=claim.statement,
            reason=f"{reason}; {claim.evidence}",
        )
        for claim in claims
    ]

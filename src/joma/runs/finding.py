"""A finding: one thing that a run shows, its number, how sure it is, where it is and what to look at next."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from joma.core.claim import Claim
from joma.core.files import Json
from joma.core.printing import one_line_of
from joma.runs.job import Job

MOST = 10
"""Findings of a digest."""
VERSION = 1
"""Of the schema of a digest's JSON."""
_TEXT: dict[str, Any] = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "a digest of joma",
    "type": "object",
    "required": ["version", "subject", "findings"],
    "additionalProperties": False,
    "properties": {
        "version": {"const": VERSION},
        "subject": _TEXT,
        "findings": {
            "type": "array",
            "maxItems": MOST,
            "items": {
                "type": "object",
                "required": ["rank", "what", "where", "metric", "value", "unit", "certainty", "next"],
                "additionalProperties": False,
                "properties": {
                    "rank": {"type": "integer", "minimum": 1},
                    "what": _TEXT,
                    "where": _TEXT,
                    "metric": _TEXT,
                    "value": {"type": ["number", "null"]},
                    "unit": _TEXT,
                    "certainty": _TEXT,
                    "next": _TEXT,
                },
            },
        },
    },
}
"""What ``Digest.as_json`` gives, as a JSON schema; ``joma digest --schema`` prints it."""
_WEIGHTS = {"fails": 45.0, "corrected": 40.0}
_HELD = 10.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a run shows."""

    what: str
    """A clause without its place: ``attention is on one key``."""
    where: str = ""
    """``layer 3, head 1``, ``loss``, a claim's id, a checkpoint's name."""
    metric: str = ""
    value: float | None = None
    """The number that it rests on; None where that is not finite, or no number."""
    unit: str = ""
    certainty: str = ""
    """A probability, standard errors, or that a level or identity needs none."""
    look_next: str = ""
    """What to look at, or to do, next."""
    weight: float = 0.0
    """Heavier ones come first: 100 for a loss that is not finite, 0 for what is as expected."""

    def sentence(self) -> str:
        """The whole finding."""
        place = f"{self.where}: " if self.where else ""
        sure = f" ({self.certainty})" if self.certainty else ""
        following = f" Next: {self.look_next}." if self.look_next else ""
        return f"{place}{self.what}{sure}.{following}"


@dataclass(frozen=True)
class Digest:
    """At most ten findings, the weightiest first; ``str`` and a notebook show them as lines."""

    subject: str
    """What was looked at."""
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, subject: str, findings: Iterable[Finding]) -> Digest:
        """The weightiest of these findings, those of one weight in their order."""
        ordered = sorted(findings, key=lambda finding: -finding.weight)
        return cls(subject, tuple(ordered[:MOST]))

    def __str__(self) -> str:
        if not self.findings:
            return one_line_of(f"{self.subject}: nothing stands out.")
        count = f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}"
        lines = [f"{number}. {one.sentence()}" for number, one in enumerate(self.findings, 1)]
        return "\n".join(map(one_line_of, [f"{self.subject}: {count}.", *lines]))

    __repr__ = __str__

    def as_json(self) -> dict[str, Json]:
        """Plain values by the names of ``SCHEMA``."""
        rows: list[Json] = [
            {
                "rank": number,
                "what": one.what,
                "where": one.where,
                "metric": one.metric,
                "value": one.value if one.value is not None and abs(one.value) < float("inf") else None,
                "unit": one.unit,
                "certainty": one.certainty,
                "next": one.look_next,
            }
            for number, one in enumerate(self.findings, 1)
        ]
        return {"version": VERSION, "subject": self.subject, "findings": rows}


def digest_of(job: Job, tables: Mapping[str, pd.DataFrame], claims: Sequence[Claim] | None = None) -> Digest:
    """The findings of the module ``findings`` beside a job, where there is one, and those of its claims.

    Args:
        job: settings of an experiment or an instrument.
        tables: what it measured.
        claims: as judged before; None: judged from the tables.
    """
    name = f"{type(job).__module__}.findings"
    own: list[Finding] = []
    if importlib.util.find_spec(name) is not None:
        own = importlib.import_module(name).findings(job, tables)
    judged = job.claims(tables) if claims is None else claims
    return Digest.of(job.heading(), [*own, *findings_of_claims(judged)])


def findings_of_claims(claims: Sequence[Claim]) -> list[Finding]:
    """What fails, then what holds in a corrected form, then what holds; what was not tested is left out."""
    return [
        Finding(
            what=f"{claim.statement.rstrip('.')}: {claim.verdict}",
            where=claim.id,
            metric="measured",
            value=claim.measured,
            certainty=_sure(claim),
            look_next="its evidence and figure: joma report" if claim.verdict == "fails" else "",
            weight=_WEIGHTS.get(claim.verdict, _HELD),
        )
        for claim in claims
        if claim.verdict != "not tested"
    ]


def _sure(claim: Claim) -> str:
    null = "" if claim.null is None else f"; null {claim.null:.3g}"
    measured = "" if claim.measured is None else f"measured {claim.measured:.3g}, expected: "
    return f"{measured}{claim.expected}{null}"

"""Claims as a terminal shows them."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from joma.core.claim import VERDICTS, Claim, Verdict
from joma.report.answer import answer_of, subject_of, verdict_words
from joma.runs.directory import Run


def number(value: float | None) -> str:
    """Four significant digits; a dash for what was not measured."""
    return "-" if value is None else f"{value:.4g}"


def run_as_text(run: Run) -> str:
    """A run's claims, and last, where a terminal's reader looks first, the answer."""
    width = _width()
    sentences = [line for sentence in answer_of(run) for line in textwrap.wrap(sentence, width)]
    words = verdict_words(subject_of(run))
    return "\n".join([claims_as_text(run.claims, words), "", *sentences])


def claims_as_text(claims: Sequence[Claim], words: Mapping[Verdict, str] | None = None) -> str:
    """One paragraph a claim: verdict, source and statement, then the numbers; a count at the end.

    With ``words``, the verdicts are called by these. Claims of several groups (the first part of their ids)
    stand under their group's name.
    """
    width = _width()
    groups = by_group(claims)
    lines: list[str] = []
    for name, members in groups.items():
        if len(groups) > 1:
            lines += [f"== {name} ({tally(members, words)})", ""]
        for claim in members:
            lines += _paragraph(claim, width, words)
        lines.append("")
    return "\n".join([*lines, tally(claims, words)])


def by_group(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """The claims under the first part of their ids, in the order they come in."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.id.partition(".")[0], []).append(claim)
    return groups


def _width() -> int:
    return min(110, max(40, shutil.get_terminal_size((100, 24)).columns))


def _paragraph(claim: Claim, width: int, words: Mapping[Verdict, str] | None) -> list[str]:
    verdict = words[claim.verdict] if words else claim.verdict
    head = f"{verdict.upper():<10} {claim.source}: {claim.statement}"
    details = []
    if claim.correction:
        details.append(f"right is: {claim.correction}")
    if claim.verdict != "not tested":
        measured = f"measured {number(claim.measured)} (expected: {claim.expected})"
        if claim.printed_error is not None:
            measured = (
                f"error as printed {number(claim.printed_error)}, as corrected {number(claim.measured)}"
            )
        if claim.null is not None:
            measured += f"; null {number(claim.null)} ({claim.null_description})"
        elif claim.exact:
            measured += "; exact"
        details.append(measured)
    if claim.evidence:
        details.append(claim.evidence)
    lines = textwrap.wrap(head, width, subsequent_indent=" " * 11)
    for detail in details:
        lines += textwrap.wrap(detail, width, initial_indent=" " * 11, subsequent_indent=" " * 13)
    return lines


def tally(claims: Sequence[Claim], words: Mapping[Verdict, str] | None = None) -> str:
    """How many claims have each verdict: ``12 claims: 8 hold, 3 corrected, 1 fails``.

    With ``words``, the verdicts are called by these.
    """
    counts = Counter(claim.verdict for claim in claims)
    several = {"holds": "hold", "fails": "fail"}
    parts = []
    for verdict in VERDICTS:
        if counts[verdict]:
            usual = several.get(verdict, verdict) if counts[verdict] > 1 else verdict
            own = verdict if words is None else words[verdict]
            parts.append(f"{counts[verdict]} {usual if own == verdict else own}")
    return f"{len(claims)} claim{'s' if len(claims) != 1 else ''}: " + (", ".join(parts) or "none")

"""Claims as a terminal shows them."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence

from joma.claim import VERDICTS, Claim


def number(value: float | None) -> str:
    """Four significant digits; a dash for what was not measured."""
    return "-" if value is None else f"{value:.4g}"


def claims_as_text(claims: Sequence[Claim]) -> str:
    """One paragraph a claim: verdict, source and statement, then the numbers; a count at the end.

    Claims of several groups (the first part of their ids) stand under their group's name.
    """
    width = min(110, max(60, shutil.get_terminal_size((100, 24)).columns))
    groups = by_group(claims)
    lines: list[str] = []
    for name, members in groups.items():
        if len(groups) > 1:
            lines += [f"== {name} ({tally(members)})", ""]
        for claim in members:
            lines += _paragraph(claim, width)
        lines.append("")
    return "\n".join([*lines, tally(claims)])


def by_group(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """The claims under the first part of their ids, in the order they come in."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.id.partition(".")[0], []).append(claim)
    return groups


def _paragraph(claim: Claim, width: int) -> list[str]:
    head = f"{claim.verdict.upper():<10} {claim.source}: {claim.statement}"
    details = []
    if claim.correction:
        details.append(f"right is: {claim.correction}")
    if claim.verdict != "not tested":
        measured = f"measured {number(claim.measured)} ({claim.expected})"
        if claim.printed_error is not None:
            measured = (
                f"error as printed {number(claim.printed_error)}, as corrected {number(claim.measured)}"
            )
        if claim.null is not None:
            measured += f"; null {number(claim.null)} ({claim.null_description})"
        details.append(measured)
    if claim.evidence:
        details.append(claim.evidence)
    lines = textwrap.wrap(head, width, subsequent_indent=" " * 11)
    for detail in details:
        lines += textwrap.wrap(detail, width, initial_indent=" " * 11, subsequent_indent=" " * 13)
    return lines


def tally(claims: Sequence[Claim]) -> str:
    """``12 hold, 3 corrected, 1 fails``: how many claims have each verdict."""
    counts = Counter(claim.verdict for claim in claims)
    parts = []
    for verdict in VERDICTS:
        if counts[verdict]:
            word = (
                {"holds": "hold", "fails": "fail"}.get(verdict, verdict) if counts[verdict] > 1 else verdict
            )
            parts.append(f"{counts[verdict]} {word}")
    return f"{len(claims)} claim{'s' if len(claims) != 1 else ''}: " + (", ".join(parts) or "none")

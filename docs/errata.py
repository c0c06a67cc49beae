"""Write docs/errata.md from the claims of ``joma check``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from joma.checks.catalog import run_checks
from joma.core.claim import Claim
from joma.report.terminal import number, tally

HEAD = """# Errata

What is printed, what is right, and the evidence. This page is written by `python docs/errata.py` from the
claims of `joma check`, which computes every number afresh. A statement counts as corrected only if the
corrected form holds within a tolerance and the printed one fails by more than ten times that tolerance.

"""


def cell(text: str) -> str:
    """Text as a Markdown table takes it."""
    for plain, escaped in (
        ("\\", "\\\\"),
        ("|", "\\|"),
        ("[", "\\["),
        ("*", "\\*"),
        ("_", "\\_"),
        ("<", "&lt;"),
        ("\n", " "),
    ):
        text = text.replace(plain, escaped)
    return text


def error(value: float | None) -> str:
    """A number, or that it is nothing but rounding, whose digits are another machine's own."""
    return "&lt; 1e-9" if value is not None and 0 <= abs(value) < 1e-9 else number(value)


def page(claims: list[Claim]) -> str:
    """The whole page in Markdown."""
    lines = [HEAD, f"In all: {tally(claims)}.\n"]
    lines += [
        "## Corrected\n",
        "| where | printed | right | error as printed | as corrected |",
        "|---|---|---|---|---|",
    ]
    for claim in claims:
        if claim.verdict == "corrected":
            errors = f"{error(claim.printed_error)} | {error(claim.measured)}"
            parts = (claim.source, claim.statement, claim.correction)
            lines.append("| " + " | ".join(map(cell, parts)) + f" | {errors} |")
    for verdict, heading in (("fails", "Fails, with no correction known"), ("holds", "Holds")):
        lines += [f"\n## {heading}\n", "| where | statement | measured | evidence |", "|---|---|---|---|"]
        for claim in claims:
            if claim.verdict == verdict:
                parts = (claim.source, claim.statement, claim.evidence)
                where, statement, evidence = map(cell, parts)
                lines.append(f"| {where} | {statement} | {error(claim.measured)} | {evidence} |")
    return "\n".join(lines) + "\n"


def kept(claim: Claim) -> dict[str, str]:
    """What docs/claims.py lists of a claim, and the size of its null."""
    described = {
        "corrected": "the printed form, off by more than ten times the tolerance",
        "not tested": f"not tested: {claim.evidence}",
    }
    null = claim.null_description if claim.null is not None else described.get(claim.verdict, "")
    size = "" if claim.null is None else error(claim.null)
    return {
        "id": claim.id,
        "statement": claim.statement,
        "verdict": claim.verdict,
        "null": null,
        "null_size": size,
    }


if __name__ == "__main__":
    target = Path(__file__).with_name("errata.md")
    computed = run_checks()
    target.write_text(page(computed), encoding="utf-8")
    listed = json.dumps([kept(claim) for claim in computed], indent=0, ensure_ascii=False)
    (target.parent / "stored" / "check.json").write_text(listed + "\n", encoding="utf-8")
    print(target, file=sys.stderr)

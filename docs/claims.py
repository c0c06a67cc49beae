"""Write docs/claims.md: every claim with its null, or why it needs none.

The experiments' claims are judged from the stored runs (docs/stored.py); those of ``joma check`` are as
``docs/errata.py`` has last computed them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import errata
import stored

from joma.core.claim import Claim
from joma.experiments import catalog
from joma.report.terminal import number

HERE = Path(__file__).parent

HEAD = """# Every claim and its null

A claim about learning stands beside the same number where the statement must not show: an untrained
network, shuffled words, a context that says nothing. This page lists all claims, each with its null or the
reason why it needs none; `exact` is mathematics, where nothing is learned and a wrong formula fails
(`make mutations`). Every other claim has garbage, by which its verdict must turn: the null's rows in the
place of the real ones, an untrained model, shuffled words, tokens or trees, a detector or a law that is
constant (`python tests/garbage.py`). The page is written by `python docs/claims.py`; what the experiments
claim is judged anew from the tables that are kept in `docs/stored` (runs of the preset `quick`; of `alarm`,
`paper`).
"""

NOT_STORED = {
    "eviction": "no run with the present settings is kept yet",
}
"""Experiments without a stored run -> why."""

OTHER_SETTINGS = {
    "snap_yz_layers.start": "judged where the start from identity is trained (preset `paper`); its null is "
    "the largest difference of two runs that differ in their seed alone",
}
"""Claims that the preset ``quick`` does not make -> which settings do, and their null."""

EXACT = "exact"
NO_SUCH_NEURON = "no untrained network has a neuron in superposition, so none has patterns to compare"
COUNTED = "an account of the healthy runs themselves; what is withdrawn in damaged ones is in the tables"

WITHOUT_NULL = {
    "alarm.armed": COUNTED,
    "alarm.valid": COUNTED,
    "fig10.unrelated": NO_SUCH_NEURON,
    "fig10.different_queries": NO_SUCH_NEURON,
}
"""Experiments' claims that were tested without a null -> why."""


class Checked(TypedDict):
    """What is kept of a claim of ``joma check``: no number, whose last digits are another machine's own."""

    id: str
    statement: str
    verdict: str
    null: str


def of_checks() -> list[Checked]:
    """The claims of ``joma check``."""
    found: list[Checked] = json.loads((stored.FOLDER / "check.json").read_text("utf-8"))
    return found


def null(claim: Claim) -> str:
    """What stands beside a claim, or why nothing does; empty where neither is said."""
    if claim.null is not None:
        return f"{number(claim.null)}: {claim.null_description}"
    if claim.verdict == "corrected":
        return f"the printed form, off by {number(claim.printed_error)}"
    if claim.verdict == "not tested":
        return f"not tested: {claim.evidence}"
    return WITHOUT_NULL.get(claim.id, EXACT if claim.exact else "")


def page() -> str:
    """The whole page in Markdown."""
    lines = [HEAD]
    by_run: dict[str, list[Claim]] = {}
    for key, claim in stored.claims().items():
        by_run.setdefault(key.removesuffix(claim.id) + claim.id.split(".")[0], []).append(claim)
    for name in catalog.names():
        lines.append(f"\n## `joma run {name}`\n")
        if name in NOT_STORED:
            lines.append(f"{NOT_STORED[name].capitalize()}: `joma run {name}`.")
            continue
        lines += _table(by_run[name])
        for preset in stored.presets_beside(name):
            lines += [f"\n`joma run {name} --preset {preset}`:\n", *_table(by_run[f"{preset}.{name}"])]
        for id, where in OTHER_SETTINGS.items():
            if id.startswith(f"{name}."):
                lines.append(_row(id, ("", "", "", where)))
    lines += ["\n## `joma check`\n", "| claim | what is claimed | verdict | null |", "|---|---|---|---|"]
    lines += [_row(c["id"], (c["statement"], c["verdict"], c["null"] or EXACT)) for c in of_checks()]
    return "\n".join(lines) + "\n"


def _table(claims: Iterable[Claim]) -> list[str]:
    lines = ["| claim | what is claimed | verdict | measured | null |", "|---|---|---|---|---|"]
    for claim in claims:
        cells = (claim.statement or claim.correction, claim.verdict, number(claim.measured), null(claim))
        lines.append(_row(claim.id, cells))
    return lines


def _row(id: str, cells: Iterable[str]) -> str:
    return f"| `{id}` | " + " | ".join(map(errata.cell, cells)) + " |"


if __name__ == "__main__":
    (HERE / "claims.md").write_text(page(), encoding="utf-8")

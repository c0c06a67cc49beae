"""The audit as tables."""

from __future__ import annotations

import pandas as pd

from joma.checkpoints.series.audit.audit import Audit, audit_series
from joma.checkpoints.series.members import select
from joma.checkpoints.series.sources.find import find_series
from joma.core.progress import Progress
from joma.instruments.audit import AuditSettings

COLUMNS = ["member", "step", "fault", "tensors", "matches"]
"""Of the table ``faults``, and of the objects that ``--json`` prints."""


def run(settings: AuditSettings, progress: Progress) -> dict[str, pd.DataFrame]:
    """Audit the series that the settings name."""
    found = find_series(settings.series, settings.revisions)
    chosen = select(found.members, settings.revisions, found.lost)
    audited = audit_series(found, chosen, lambda some: progress.track(some, "members", total=len(chosen)))
    return tables_of(audited)


def tables_of(audited: Audit) -> dict[str, pd.DataFrame]:
    """``faults``, ``reasons``, ``notes`` and ``members``."""
    faults = [(f.member, f.step, f.fault, list(f.tensors), f.matches or None) for f in audited.faults]
    reasons = [(f.member, f.fault, f.reason, f.sentence()) for f in audited.faults]
    members = [(one.name, one.place.step, one.size) for one in audited.members]
    return {
        "faults": pd.DataFrame(faults, columns=COLUMNS),
        "reasons": pd.DataFrame(reasons, columns=["member", "fault", "reason", "text"]),
        "notes": pd.DataFrame({"text": audited.notes}, dtype="str"),
        "members": pd.DataFrame(members, columns=["member", "step", "bytes"]),
    }


def text_of(cell: object) -> str:
    """A cell's text; empty where the table has none, in whatever way a table says so."""
    return cell if isinstance(cell, str) else ""

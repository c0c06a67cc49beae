"""The members of a series that are not what their names say, each as a finding."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.instruments.audit import AuditSettings
from joma.runs.finding import Finding

_FAULT = 95.0


def findings(settings: AuditSettings, tables: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """One for each faulty member and fault, in the order of the steps."""
    sizes = [len(tensors) for tensors in tables["faults"]["tensors"]]
    return [
        Finding(
            what=str(row.text).rstrip("."),
            where=str(row.member),
            metric=str(row.fault),
            value=float(size),
            unit="tensors",
            certainty="its bytes, names and place among its neighbours",
            look_next="fetch or save this member again",
            weight=_FAULT,
        )
        for row, size in zip(tables["reasons"].itertuples(), sizes, strict=True)
    ]

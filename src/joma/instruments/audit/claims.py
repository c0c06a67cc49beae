"""What an audit found, in sentences: no paper states anything about a user's files."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim
from joma.core.printing import some_names
from joma.instruments.audit import AuditSettings

_NAMED = 5


def claims(settings: AuditSettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """None."""
    return []


def answer(settings: AuditSettings, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Which members are not what their names say, the first fault, and what was noticed."""
    faulty = list(dict.fromkeys(tables["faults"]["member"]))
    said = [
        f"Each of the {len(tables['members'])} members is what its name says, as far as its weights tell."
    ]
    if faulty:
        names = some_names(faulty, _NAMED)
        words = ("is", "its name says") if len(faulty) == 1 else ("are", "their names say")
        said = [
            f"{len(faulty)} of the {len(tables['members'])} members {words[0]} not what {words[1]}: {names}.",
            str(tables["reasons"]["text"].iloc[0]),
        ]
    noticed = list(tables["notes"]["text"])
    return said + [f"Noticed: {'; '.join(noticed)}."] * bool(noticed)

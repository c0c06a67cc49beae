"""What an audit found, as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.instruments.audit import AuditSettings


def terminal_text(settings: AuditSettings, tables: Mapping[str, pd.DataFrame]) -> str:
    """The answer's first sentence, then one line per fault and note."""
    lines = [settings.answer(tables)[0], *(f"  {text}" for text in tables["reasons"]["text"])]
    return "\n".join([*lines, *(f"  noticed: {text}" for text in tables["notes"]["text"])])

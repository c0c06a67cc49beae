"""What a sparsity run found, as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.instruments.sparsity import SparsitySettings


def terminal_text(settings: SparsitySettings, tables: Mapping[str, pd.DataFrame]) -> str:
    """How many units a token needs, and what other sets of the same size cost."""
    sets = tables["sets"].drop(columns=["unit"])
    lines = []
    for row in sets[sets["choice"] == "own"].itertuples():
        lines.append(
            f"{row.kind}: a token keeps at most {row.share_kept:.1%} of {row.of} within {settings.epsilon:g} "
            "nats of its loss (an upper bound: a better choice may need fewer)."
        )
    lines += ["", sets.to_string(index=False, float_format=lambda value: f"{value:.4f}")]
    return "\n".join(lines)

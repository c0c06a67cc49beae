"""A probed model as a terminal shows it: one line a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def probe_as_text(tables: Mapping[str, pandas.DataFrame]) -> str:
    """What was probed, a table of layers, and what could not be measured."""
    model = tables["model"].iloc[0]
    lines = [
        f"{model['model']}: {model['parameters']:,} parameters ({model['dtype']} on {model['device']}), "
        f"{model['tokens']:,} tokens in {model['windows']} windows of at most {model['longest_window']}",
        "",
    ]
    if len(tables["layers"]):
        lines.append(
            tables["layers"].to_string(index=False, float_format=lambda value: f"{value:.3f}", na_rep="-")
        )
        lines.append("")
    if "not_measured" in tables:
        lines += [f"not measured: {row.section}: {row.reason}" for row in tables["not_measured"].itertuples()]
        lines.append("")
    return "\n".join(lines)

"""A probed model as a terminal shows it: one line a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

_STANDS_OUT = 4.0
_PAIRS_SHOWN = 5


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
    if "salience" in tables:
        lines += [*_salience_lines(tables["salience"]), ""]
    if "not_measured" in tables:
        lines += [f"not measured: {row.section}: {row.reason}" for row in tables["not_measured"].itertuples()]
        lines.append("")
    return "\n".join(lines)


def _salience_lines(table: pandas.DataFrame) -> list[str]:
    """The context tokens that stand out most, and how many would by chance."""
    known = table[table["contrast_standard_error"] > 0]
    ratio = known["contrast"] / known["contrast_standard_error"]
    beyond = known[ratio > _STANDS_OUT]
    words = "query" in table
    some = beyond.sort_values("contrast", ascending=False).head(_PAIRS_SHOWN)
    shown = [
        f"layer {row.layer}, query {row.query!r}: {row.context!r}"
        if words
        else f"layer {row.layer}, query token {row.query_token}: {row.context_token}"
        for row in some.itertuples()
    ]
    return [
        f"salience: {len(beyond)} of {len(known)} pairs of query and context token have a contrast beyond "
        f"{_STANDS_OUT:g} standard errors; the median is {ratio.median():.2f}, and 1 is noise",
        *(f"  {line}" for line in shown),
    ]

"""Which rows of a table of the joint dynamics are the index, as pages, sentences and claims mean it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def index_rows(
    table: pandas.DataFrame, metric: str = "index", *, given: str = "nothing", scale: str = "linear"
) -> pandas.DataFrame:
    """The rows over all positions, the first token left out: one per head, and, without one, their mean.

    Args:
        table: of ``sections.joint_dynamics.joint_dynamics``, or its curves along a training.
        metric: see ``joma.measures.joint_dynamics.Variant``, as ``given`` and ``scale``.
        given: what is held fixed.
        scale: Pearson's with the prediction itself (``linear``), or another.
    """
    chosen = (table["metric"] == metric) & (table["given"] == given) & (table["scale"] == scale)
    chosen &= table["sink"] == "out"
    if "position" in table:
        chosen &= table["position"].isna()
    return table[chosen]


def index_of_heads(
    table: pandas.DataFrame, metric: str = "index", *, given: str = "nothing", scale: str = "linear"
) -> pandas.Series[float]:
    """The value of each head that has one, of ``index_rows``."""
    return index_rows(table, metric, given=given, scale=scale).dropna(subset=["head", "value"])["value"]

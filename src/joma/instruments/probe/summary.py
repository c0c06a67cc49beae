"""A probe's tables in one: a row per layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from joma.instruments.probe.sections.index_rows import index_rows
from joma.measures.attention.statistics import ATTENTION_ENTROPY

if TYPE_CHECKING:
    import pandas

_ORDER = (
    *("entropy", "lowest", "highest", "normalised", "first_key"),
    *("rank_lower", "rank_gate", "cosine", "index"),
)


def layer_summary(tables: Mapping[str, pandas.DataFrame]) -> pandas.DataFrame:
    """One row per layer: the means over heads, matrices and texts that one looks at first.

    Columns, as far as they were measured: ``entropy`` (nats, mean over heads), ``lowest`` and ``highest``
    (of the heads' entropies), ``normalised``, ``first_key`` (mass), ``rank_lower``, ``rank_gate`` (stable),
    ``cosine`` (mean absolute, of distinct tokens at the layer's input), ``index`` (joint
    dynamics, see ``joma.instruments.probe.sections.index_rows.index_rows``, mean over heads).
    """
    import pandas

    columns: dict[str, pandas.Series] = {}
    if "attention" in tables:
        heads = tables["attention"].pivot_table(
            index=["layer", "module", "call", "head"], columns="metric", values="value"
        )
        layers = heads.groupby("layer")
        names = {
            ATTENTION_ENTROPY: "entropy",
            "normalised_entropy": "normalised",
            "first_key_mass": "first_key",
        }
        for metric, name in names.items():
            if metric in heads:
                columns[name] = layers[metric].mean()
        if ATTENTION_ENTROPY in heads:
            entropies = layers[ATTENTION_ENTROPY]
            columns["lowest"], columns["highest"] = entropies.min(), entropies.max()
    if "ranks" in tables:
        ranks = tables["ranks"]
        ranks = ranks[(ranks["metric"] == "stable_rank") & ranks["layer"].notna()]
        for matrix in ("lower", "gate"):
            own = ranks[ranks["matrix"] == matrix]
            if len(own):
                columns[f"rank_{matrix}"] = own.groupby("layer")["value"].mean()
    if "coherence" in tables:
        rows = tables["coherence"]
        rows = rows[(rows["metric"] == "mean_absolute_cosine") & (rows["pairs"] == "different")]
        rows = rows[(rows["place"] == "input") & (rows["other_layer"] == rows["layer"]) & ~rows["centred"]]
        columns["cosine"] = rows.groupby("layer")["value"].mean()
    if "joint_dynamics" in tables:
        rows = index_rows(tables["joint_dynamics"])
        columns["index"] = rows[rows["head"].isna()].groupby("layer")["value"].mean()
    table = pandas.DataFrame({name: columns[name] for name in _ORDER if name in columns})
    return table.rename_axis("layer").reset_index()

"""A probe's tables in one: a row per layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from joma.checkpoints.families.names import locate
from joma.checkpoints.families.roles import role_at
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

    Where layers of several stacks have one number (encoder and decoder), or a layer has self and cross
    attention, the first column is ``stack``: ``encoder``, ``decoder``, ``decoder cross``.

    Columns, as far as they were measured: ``entropy`` (nats, mean over heads), ``lowest`` and ``highest``
    (of the heads' entropies), ``normalised``, ``first_key`` (mass), ``rank_lower``, ``rank_gate`` (stable),
    ``cosine`` (mean absolute, of distinct tokens at the layer's input), ``index`` (joint
    dynamics, see ``joma.instruments.probe.sections.index_rows.index_rows``, mean over heads).
    """
    import pandas

    columns: dict[str, pandas.Series] = {}
    several = _has_stacks(tables)
    index = ["stack", "layer"] if several else ["layer"]
    if "attention" in tables:
        rows = tables["attention"]
        rows = rows.assign(stack=rows["module"].map(stack_of)) if several else rows
        heads = rows.pivot_table(index=[*index, "module", "call", "head"], columns="metric", values="value")
        layers = heads.groupby(index)
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
                columns[f"rank_{matrix}"] = own.groupby(index)["value"].mean()
    if "coherence" in tables:
        rows = tables["coherence"]
        rows = rows[(rows["metric"] == "mean_absolute_cosine") & (rows["pairs"] == "different")]
        rows = rows[(rows["place"] == "input") & (rows["other_layer"] == rows["layer"]) & ~rows["centred"]]
        columns["cosine"] = _by_layer(rows, index)
    if "joint_dynamics" in tables:
        rows = index_rows(tables["joint_dynamics"])
        columns["index"] = _by_layer(rows[rows["head"].isna()], index)
    table = pandas.DataFrame({name: columns[name] for name in _ORDER if name in columns})
    return table.rename_axis(index).reset_index()


def stack_of(module: str) -> str:
    """Which stack an attention of this name stands in: ``decoder``, ``decoder cross``, or nothing."""
    place = locate(f"{module}.q_proj.weight")
    cross = (role_at(place) or "").startswith("cross_")
    return f"{place.stack} {'cross' if cross else ''}".strip()


def _has_stacks(tables: Mapping[str, pandas.DataFrame]) -> bool:
    """Whether a layer's number stands for several layers, or several attentions of one."""
    if "attention" in tables:
        places = tables["attention"][["layer", "module"]].drop_duplicates()
        return not places["layer"].is_unique
    return "ranks" in tables and tables["ranks"]["stack"].nunique() > 1


def _by_layer(rows: pandas.DataFrame, index: list[str]) -> pandas.Series:
    """Means by layer of a section that reads one stack, which has no name."""
    return rows.assign(stack="").groupby(index)["value"].mean()

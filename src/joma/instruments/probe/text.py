"""What was found in a probed model: sentences for the first screen, and a table for the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.checkpoints.adapters import is_adapter
from joma.checkpoints.omissions import left_out
from joma.core.files import user_path
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.adapter import adapter_as_text
from joma.instruments.probe.sections.index_rows import index_of_heads
from joma.measures.attention.statistics import ATTENTION_ENTROPY

_STANDS_OUT = 4.0
_PAIRS_SHOWN = 5
_LEGEND = {
    "entropy": "attention entropy in nats, mean over heads (0: one key gets all)",
    "lowest": "entropy of the head with the least",
    "highest": "entropy of the head with the most",
    "normalised": "entropy over the log of the keys that a row sees (1: uniform)",
    "first_key": "share of the attention on the first key",
    "rank_lower": "stable rank of the lower MLP matrix (1: a single direction)",
    "rank_gate": "stable rank of the gate",
    "cosine": "mean |cosine| of distinct tokens at the layer's input (0: orthogonal)",
    "index": "correlation of log-attention with Theorem 1's prediction (1: as predicted)",
}


def probe_sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """At most one sentence a section: attention, ranks, Theorem 1, representations, what keys receive."""
    layers = tables["layers"]
    said = [
        _of_attention(layers, tables), _of_ranks(layers), _of_omissions(tables), _of_theorem_1(tables),
        _of_cosines(layers), _of_received(tables),
    ]  # fmt: skip
    return [sentence for sentence in said if sentence]


def _of_received(tables: Mapping[str, pd.DataFrame]) -> str:
    if "received_attention" not in tables:
        return ""
    mean = tables["received_attention"].groupby("metric")["value"].mean()
    return (
        f"{mean['hitter_share']:.1%} of the keys receive 90 % of the attention "
        f"({mean['even_hitter_share']:.1%} if all queries attended uniformly); the first key receives "
        f"{mean['first_key_share']:.1%}."
    )


def _of_attention(layers: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> str:
    if "entropy" not in layers or layers["entropy"].isna().all():
        return ""
    course = _course(layers, "entropy")
    first, least = course.index[0], course.idxmin()
    if f"{course.min():.2f}" == f"{course.max():.2f}":
        layers_alike = " in every layer" if len(course) > 1 else ""
        said = f"Attention entropy is {course.iloc[0]:.2f} nats{layers_alike}"
    elif f"{course.iloc[0]:.2f}" == f"{course[least]:.2f}":
        said = (
            f"Attention entropy is {course.iloc[0]:.2f} nats in {first}, and nowhere less; it is "
            f"{course.max():.2f} at most, in {course.idxmax()}"
        )
    elif least == first:
        said = (
            f"Attention entropy is least in {first} ({course.iloc[0]:.2f} nats) and "
            f"{course.max():.2f} at most, in {course.idxmax()}"
        )
    else:
        said = (
            f"Attention entropy falls from {course.iloc[0]:.2f} nats in {first} to "
            f"{course[least]:.2f} in {least}"
        )
        if f"{course.iloc[-1]:.2f}" != f"{course[least]:.2f}":
            said += f" and stands at {course.iloc[-1]:.2f} in the last"
    if "first_key" in layers:
        said += f"; {layers['first_key'].mean():.0%} of the mass lies on the first token"
    return f"{said}.{_odd_head(tables)}"


def _course(layers: pd.DataFrame, column: str) -> pd.Series:
    """A column by the layers' names: ``layer 3``, ``decoder layer 3`` where there are stacks."""
    known = layers.dropna(subset=column)
    names = "layer " + known["layer"].astype(str)
    if "stack" in known:
        names = (known["stack"] + " " + names).str.lstrip()
    return known[column].set_axis(names)


def _odd_head(tables: Mapping[str, pd.DataFrame]) -> str:
    """The head that stands farthest from its layer, where one stands out at all."""
    rows = tables["attention"]
    rows = rows[rows["metric"] == ATTENTION_ENTROPY]
    several = not rows[["layer", "module"]].drop_duplicates()["layer"].is_unique
    place = rows["module"] if several else "layer " + rows["layer"].astype(str)
    heads = rows.groupby([place.rename("place"), "head"])["value"].mean().unstack("head")
    if heads.shape[1] < 3:
        return ""
    middle = heads.median(axis=1)
    apart = heads.sub(middle, axis=0)
    scale = float(np.nanmedian(np.abs(apart.to_numpy()))) * 1.4826
    layer, head = apart.abs().stack().idxmax()
    if not scale > 0 or abs(apart.loc[layer, head]) < _STANDS_OUT * scale:
        return ""
    own, others = f"{heads.loc[layer, head]:.2f}", f"{middle[layer]:.2f}"
    if own == others:
        return ""
    return f" Head {head} of {layer} stands out: {own} nats where its layer's median is {others}."


def _of_ranks(layers: pd.DataFrame) -> str:
    column = next((name for name in ("rank_lower", "rank_gate") if name in layers), None)
    if column is None or layers[column].isna().all():
        return ""
    course = _course(layers, column)
    what = "lower MLP matrix" if column == "rank_lower" else "MLP's gate"
    least, most = f"{course.min():.0f}", f"{course.max():.0f}"
    if least == most:
        return f"The stable rank of the {what} is {least}{' in every layer' if len(course) > 1 else ''}."
    return (
        f"The stable rank of the {what} lies between {least} ({course.idxmin()}) and "
        f"{most} ({course.idxmax()})."
    )


def _of_omissions(tables: Mapping[str, pd.DataFrame]) -> str:
    said = left_out(tables["ranks"]) if "ranks" in tables else ""
    return said[:1].upper() + said[1:]


def _of_theorem_1(tables: Mapping[str, pd.DataFrame]) -> str:
    if "joint_dynamics" not in tables:
        return ""
    index, null = (index_of_heads(tables["joint_dynamics"], metric) for metric in ("index", "null"))
    if index.empty or null.empty:
        return ""
    beside = f"shuffled tokens: {null.abs().mean():.2f}"
    if "untrained_joint_dynamics" in tables:
        untrained = index_of_heads(tables["untrained_joint_dynamics"], "index")
        beside += f", an untrained network: {untrained.abs().mean():.2f}"
    return (
        f"Log-attention correlates with Theorem 1's prediction by {index.mean():.2f} on average over "
        f"{len(index)} heads (sizes by chance: {beside}), positively in {(index > 0).mean():.0%} of them."
    )


def _of_cosines(layers: pd.DataFrame) -> str:
    if "cosine" not in layers or layers["cosine"].isna().all():
        return ""
    course = _course(layers, "cosine")
    return (
        f"Distinct tokens have a mean |cosine| of {course.iloc[0]:.2f} at the input of "
        f"{course.index[0]} and {course.iloc[-1]:.2f} at that of {course.index[-1]}."
    )


def probe_as_text(tables: Mapping[str, pd.DataFrame]) -> str:
    """What was probed, a table of layers with its legend, and what could not be measured."""
    model = tables["model"].iloc[0]
    lines = [
        f"{model['model']}: {model['parameters']:,} parameters ({model['dtype']} on {model['device']}), "
        f"{model['tokens']:,} tokens in {model['windows']} windows of at most {model['longest_window']}",
        "",
    ]
    layers = tables["layers"]
    if len(layers):
        lines += [*_blocks_of_columns(layers), ""]
        lines += [
            line
            for name in layers.columns
            if name in _LEGEND
            for line in _wrap(f"{name:<11} {_LEGEND[name]}", " " * 12)
        ]
        lines.append("")
    if "salience" in tables:
        lines += [*_salience_lines(tables["salience"]), ""]
    if "not_measured" in tables:
        missing = tables["not_measured"].itertuples()
        lines += [line for row in missing for line in _wrap(f"not measured: {row.section}: {row.reason}")]
        lines.append("")
    return "\n".join(lines)


def _blocks_of_columns(layers: pd.DataFrame) -> list[str]:
    """The table in as many blocks of columns as the terminal's width asks for."""
    names = layers["layer"].astype(str)
    if "stack" in layers:
        names = (layers["stack"] + " " + names).str.lstrip()
    table = layers.drop(columns=["layer", "stack"], errors="ignore").set_axis(names.rename(None))
    table = table.rename_axis("layer", axis="columns")
    text = table.to_string(float_format=lambda value: f"{value:.3f}", na_rep="-", line_width=_width())
    return [line.rstrip(" \\") for line in text.splitlines()]


def _width() -> int:
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def _wrap(text: str, following: str = "  ") -> list[str]:
    return textwrap.wrap(text, min(110, _width()), subsequent_indent=following)


def _salience_lines(table: pd.DataFrame) -> list[str]:
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
        *_wrap(
            f"salience: {len(beyond)} of {len(known)} pairs of query and context token have a contrast "
            f"beyond {_STANDS_OUT:g} standard errors; the median is {ratio.median():.2f}, and 1 is noise"
        ),
        *(f"  {line}" for line in shown),
    ]


def terminal_text(settings: ProbeSettings, tables: Mapping[str, pd.DataFrame]) -> str:
    """A row per layer with its legend; of weights, the stable rank of each layer's matrices."""
    if settings.adapter:
        return adapter_as_text(tables)
    if not settings.weights:
        return probe_as_text(tables)
    ranks = tables["ranks"][tables["ranks"]["metric"] == "stable_rank"]
    of_layer = ranks.pivot_table(index="layer", columns="matrix", values="value", sort=False)
    worst = ranks["error_bound"].max()
    adapted = is_adapter(user_path(settings.reading.model))
    return "\n".join(
        [
            *(
                ["The folder holds an adapter: these are its base's weights with it applied."]
                if adapted
                else []
            ),
            f"stable_rank = ||W||_F^2 / sigma_1^2 of {len(ranks)} matrices, means over those of one name in "
            f"a layer; error bound at most {worst:.2g}",
            of_layer.to_string(float_format=lambda value: f"{value:.3f}", na_rep="-"),
        ]
    )

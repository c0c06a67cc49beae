"""Top layers that bounce, bottom layers that only fall, and the wave through the layers."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.arguments import Array
from joma.core.claim import Claim, Statement, above, statements
from joma.core.tables import rows
from joma.experiments.joma_paper.fig7 import Fig7
from joma.instruments.track.waves import LEAST_LAYERS, layer_order, top_above_bottom

_POOLED = 5
WAVES = "arXiv 2604.22778"
STATEMENTS = statements(
    {
        "fig7.top_layers": "JoMA Sec. 6, Fig. 7 | The stable ranks of the lower MLP fall and bounce back in "
        "top layers, and only fall in bottom layers.",
        "fig7.wave": f"{WAVES} | Ranks fall in early layers first.",
        "fig7.wave_back": f"{WAVES} | Ranks return in late layers first.",
    }
)


def claims(settings: Fig7, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """JoMA Fig. 7, and the two waves of arXiv 2604.22778."""
    return [
        _top_layers(settings, tables),
        _wave(settings, tables["dates"], "fall", 1, STATEMENTS["fig7.wave"]),
        _wave(settings, tables["dates"], "return", -1, STATEMENTS["fig7.wave_back"]),
    ]


def _top_layers(settings: Fig7, tables: Mapping[str, pd.DataFrame]) -> Claim:
    statement = STATEMENTS["fig7.top_layers"]
    ranks = rows(tables["layers"], metric="stable_rank", matrix="lower")
    if ranks["layer"].nunique() < LEAST_LAYERS or ranks["rebound"].isna().all():
        return statement.not_tested(f"it needs {LEAST_LAYERS} layers and 8 checkpoints of each run")
    rises = _rebounds(tables["curves"])
    measured, null, probability = top_above_bottom(rises, settings.seed)
    depths = tables["curves"].groupby("run")["layer"].nunique()
    depth = ranks["run"].map(depths).fillna(depths.max())  # runs that are judged together have one depth
    top = ranks[ranks["layer"] >= depth - depth // 2]["verdict"]
    bottom = ranks[ranks["layer"] < depth // 2]["verdict"]
    return statement.judge(
        above(
            null, measured, of="rebound of upper less lower layers", than="the 95 % point of shuffled layers"
        )
        & above(0.5, (top == "bounces").mean(), of="share of upper layers that bounce")
        & above(0.5, (bottom == "only falls").mean(), of="share of lower layers that only fall"),
        null=null,
        null_description="95 % point with the layers of every run shuffled",
        evidence=f"mean rebound over the curve's range, upper half minus lower half, {len(rises)} runs, "
        f"p = {probability:.3g}; {int((top == 'bounces').sum())} of {len(top)} upper layers bounce, "
        f"{int((bottom == 'only falls').sum())} of {len(bottom)} lower layers only fall",
    )


def _rebounds(curves: pd.DataFrame) -> list[Array]:
    """Of each run (layers,): how much of its range each curve has risen from its lowest point by the end."""
    ranks = rows(curves, metric="stable_rank", matrix="lower")

    def share(values: pd.Series) -> float:
        low = int(values.to_numpy().argmin())
        return float((values.iloc[low:].max() - values.min()) / max(values.max() - values.min(), 1e-300))

    ordered = ranks.sort_values("step").groupby(["run", "layer"])["value"].agg(share)
    return [one.sort_index(level="layer").to_numpy() for _, one in ordered.groupby("run")]


def _wave(settings: Fig7, table: pd.DataFrame, move: str, sign: int, statement: Statement) -> Claim:
    moves = rows(table, metric="stable_rank", matrix="lower", move=move)
    runs = [sign * one.sort_values("layer")["step"].to_numpy() for _, one in moves.groupby("run")]
    order = layer_order(runs, settings.seed)
    if order is None:
        return statement.not_tested(f"in some run fewer than {LEAST_LAYERS} layers {move}")
    if order.runs < _POOLED:
        return statement.not_tested(
            f"{order.runs} runs pooled (order correlation {order.correlation:.2f}, shuffled layers "
            f"{order.null:.2f} once in twenty), and a wave counts in {_POOLED} seeds"
        )
    return statement.judge(
        above(
            order.null, order.correlation, of="order correlation", than="the 95 % point of shuffled layers"
        ),
        null=order.null,
        null_description="95 % point with the layers of every run shuffled",
        evidence=f"Spearman's correlation of layer and date of half the {move}, mean of {order.runs} runs; "
        f"p = {order.probability:.3g}; at least {order.layers} layers a run",
    )


def answer(settings: Fig7, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Which layers bounce, and whether they move in order."""
    ranks = rows(tables["layers"], metric="stable_rank", matrix="lower")
    counts = ranks["verdict"].value_counts()
    kinds = ", ".join(f"{int(counts[kind])} {kind}" for kind in counts.index)
    runs = tables["curves"]["run"].nunique()
    said = [f"Stable rank of the lower MLP, {runs} runs, by layer: {kinds}."]
    lost = tables["downloads"]
    lost = lost[lost["note"] != ""]
    if len(lost):
        said.append(f"Not tracked: {'; '.join(lost['model'] + ' (' + lost['note'].str.rstrip('.') + ')')}.")
    return said

"""What the papers say of layers along training, judged on a user's series."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Statement, above, statements
from joma.core.tables import rows
from joma.instruments.track import TrackSettings
from joma.instruments.track.curves import FALSE_DISCOVERIES
from joma.instruments.track.story import what_happened
from joma.instruments.track.waves import LEAST_LAYERS, top_above_bottom

_MATRIX = "lower"
WAVES = "arXiv 2604.22778"
STATEMENTS = statements(
    {
        "track.top_layers": "JoMA Sec. 6, Fig. 7 | The stable ranks of the lower MLP fall and bounce back "
        "in top layers, and only fall in bottom layers.",
        "track.wave": f"{WAVES} | Rank compression runs from early to late layers.",
        "track.wave_back": f"{WAVES} | The ranks return from late to early layers.",
    }
)


def claims(settings: TrackSettings, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """JoMA Fig. 7's top layers that bounce and bottom layers that fall; the wave of rank compression."""
    return [
        _top_layers(settings, tables["bounces"]),
        _wave(tables["orders"], "fall", STATEMENTS["track.wave"]),
        _wave(tables["orders"], "return", STATEMENTS["track.wave_back"]),
    ]


def _top_layers(settings: TrackSettings, bounces: pd.DataFrame) -> Claim:
    statement = STATEMENTS["track.top_layers"]
    ranks = rows(bounces, series="A", metric="stable_rank", matrix=_MATRIX).dropna(
        subset=["layer", "rebound"]
    )
    ranks = rows(ranks, line=ranks["line"].iloc[0] if len(ranks) else "").sort_values("layer")
    if ranks["layer"].nunique() < LEAST_LAYERS:
        return statement.not_tested(
            f"it needs {LEAST_LAYERS} layers with curves of 8 checkpoints or more each"
        )
    # In units of what noise alone makes of each curve, so that layers can be compared.
    sizes = (ranks["rebound"] / ranks["rebound_null"].clip(lower=1e-300)).groupby(ranks["layer"]).mean()
    measured, null, probability = top_above_bottom(sizes.to_numpy(), settings.seed)
    half = len(sizes) // 2
    layers = sizes.index.to_numpy()
    verdicts = ranks.groupby("layer")["verdict"].first()
    top = int((verdicts.loc[layers[-half:]] == "bounces").sum())
    bottom = int((verdicts.loc[layers[:half]] == "bounces").sum())
    return statement.judge(
        above(
            null,
            measured,
            of="rebound of the upper half less that of the lower half",
            than="the 95 % point of shuffled layers",
        )
        & above(bottom, top, of="number of upper layers that bounce", than="that of lower ones"),
        null=null,
        null_description="95 % point with the layers shuffled",
        evidence=f"mean rebound in units of its own null (a curve that only falls), upper half minus lower "
        f"half; p = {probability:.3g}; {top} of {half} upper and {bottom} of {half} lower layers bounce "
        "beyond their null",
    )


def _wave(orders: pd.DataFrame, move: str, statement: Statement) -> Claim:
    order = rows(orders, series="A", metric="stable_rank", move=move, matrix=_MATRIX)
    if order.empty:
        return statement.not_tested(f"fewer than {LEAST_LAYERS} layers {move} along this series")
    row = order.iloc[0]
    sign = 1 if move == "fall" else -1
    return statement.not_tested(
        "one run cannot tell: a wave counts in the pooled runs of five seeds (joma run fig7); the "
        f"order correlation of this run's {row['layers']} layers is {row['correlation']:.2f}, "
        f"shuffled ones reach {sign * row['null']:.2f} once in twenty"
    )


def answer(settings: TrackSettings, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What happened, how many checkpoints were measured, and what is wrong with the series."""
    members, notes, found = tables["checkpoints"], tables["notes"], tables["bounces"]
    measured = (
        f"{int(members['measured'].sum())} of {len(members)} checkpoints measured, "
        f"steps {members['step'].min()} to {members['step'].max()}"
    )
    if len(judged := found[found["points"] >= 8]):
        counts = judged["verdict"].value_counts()
        kinds = ", ".join(f"{int(counts[kind])} {kind}" for kind in counts.index)
        said = [
            what_happened(tables),
            f"{measured}; of {len(judged)} curves over the steps: {kinds} (each against its own null; of "
            f"those that fall or bounce at most {FALSE_DISCOVERIES:.0%} are chance).",
        ]
    else:
        longest = int(found["points"].max()) if len(found) else 0
        said = [
            f"{measured}.",
            f"No dip can be told from noise: the longest curve has {longest} of the 8 points it needs.",
        ]
    lost, others = notes[notes["lost"]], notes[~notes["lost"]]
    if len(lost):
        said.append(f"Not measured: {_list_texts(lost['text'])}.")
    elif len(others):
        ordered = others.sort_values("kind", key=lambda kinds: kinds.isin(_USUAL), kind="stable")
        said.append(f"Noticed: {_list_texts(ordered['text'])}.")
    return said


_USUAL = ("weights alone", "left out", "no member", "gap", "stale")
"""Kinds of notes that come after the others, which say that a member is not what its name says."""


def _list_texts(texts: pd.Series) -> str:
    some = [text.rstrip(".") for text in texts[:2]]
    more = len(texts) - len(some)
    return "; ".join(some) + (f"; and {more} more" if more else "")

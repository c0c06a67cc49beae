"""Measurements of checkpoints with their place in the training, and what was left out of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from joma.checkpoints.omissions import CONVENTION, OMITTED
from joma.checkpoints.series.alike import without_shared
from joma.checkpoints.series.members import Member, Note
from joma.core.printing import some_names

Piece = tuple[Member, Member | None, list[pd.DataFrame]]
"""A member, the one before it in its line, and tables of it."""


def place_rows(series: str, pieces: Sequence[Piece]) -> pd.DataFrame:
    """The tables in one, after ``series, checkpoint, line, step, tokens``; curves with loss and speed."""
    if not pieces:
        return pd.DataFrame()
    table = pd.concat([table for *_, tables in pieces for table in tables], ignore_index=True)
    number = np.repeat(np.arange(len(pieces)), [sum(map(len, tables)) for *_, tables in pieces])
    if "against" in table:
        steps = np.array(
            [1 if before is None else now.place.step - before.place.step for now, before, _ in pieces]
        )
        moved = ((table["metric"] == "change_norm") & (table["against"] == "previous")).to_numpy()
        # A change below the rounding of the stored type is no speed; an unknown bound excludes nothing.
        moved = moved & ~(table["value"] <= table["error_bound"]).to_numpy()
        unit = np.array([f"1/{now.place.unit}" for now, *_ in pieces], dtype=object)[number[moved]]
        value = table["value"][moved] / steps[number[moved]]
        speed = table[moved].assign(metric="speed", value=value, unit=unit)
        table = pd.concat([table, speed], ignore_index=True)
        number = np.concatenate([number, number[moved]])
        order = np.argsort(number, kind="stable")
        table, number = table.iloc[order].reset_index(drop=True), number[order]
    members = [now for now, *_ in pieces]
    place = pd.DataFrame(
        {
            "series": series,
            "checkpoint": [one.name for one in members],
            "line": [one.place.line_name for one in members],
            "step": [one.place.step for one in members],
            "tokens": [np.nan if one.place.tokens is None else one.place.tokens for one in members],
        }
    )
    if "against" in table:
        place["loss"] = [_loss(tables) for *_, tables in pieces]
    return pd.concat([place.iloc[number].reset_index(drop=True), table], axis=1)


def _loss(tables: Sequence[pd.DataFrame]) -> float:
    for table in tables:
        if len(table) and table["metric"].iloc[0] == "loss":
            return float(table["value"].iloc[0])
    return np.nan


def same_stacks(values: pd.DataFrame) -> pd.DataFrame:
    """Stacks under one name along the series: without what all of a checkpoint share, where names differ."""
    own = values[values["layer"].notna()].groupby("checkpoint", sort=False)["stack"].unique()
    if len({frozenset(stacks) for stacks in own}) < 2:
        return values
    plain = {name: without_shared(stacks) for name, stacks in own.items()}
    pairs = zip(values["checkpoint"], values["stack"], strict=True)
    return values.assign(stack=[plain.get(name, {}).get(stack, stack) for name, stack in pairs])


def notes_of_omissions(values: pd.DataFrame) -> list[Note]:
    """What was left out, each reason once; ``lost`` where a matrix that was asked for could not be read."""
    # A zero matrix has no stable rank; its other rows say the same.
    told = (values["reason"] != "") & values["metric"].isin([OMITTED, "stable_rank"])
    notes = []
    count = values["checkpoint"].nunique()
    for (metric, reason), own in values[told].groupby(["metric", "reason"], sort=False):
        kind = "left out" if metric == OMITTED else "zero"
        if (own["unit"] == CONVENTION).all():
            kind = "read by convention"
        names = own["matrix" if metric == OMITTED else "tensor"].unique().tolist()
        lost = bool(metric == OMITTED and (own["tensor"] != "").any())
        where = own["checkpoint"].unique().tolist()
        places = "" if len(where) == count else f", of {some_names(where)}"
        what = "" if names == ["query_key"] else f"{some_names(names)}: "
        notes.append(Note(kind, "", f"{what}{reason}{places}", lost=lost))
    return notes

"""The members that are measured within a budget, chosen before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import pandas as pd

from joma.checkpoints.series.amounts import read_budget
from joma.checkpoints.series.choice import Choice, choose, sentence_of
from joma.checkpoints.series.members import Member, Note
from joma.checkpoints.series.sources.source import Series, kept_of
from joma.instruments.track import TrackSettings
from joma.instruments.track.measuring.one import Prices, fetch_sizes, prices_of, wanted_by
from joma.instruments.track.measuring.parts import Parts

COLUMNS = ["checkpoint", "step", "reason", "cost", "unit"]
"""Of the table ``choice``: one row per member that was chosen, the ones that tell most first."""


def choices(
    settings: TrackSettings, members: Sequence[Member], fetch: Mapping[str, int], prices: Prices | None
) -> list[Choice]:
    """The members that tell most within the settings' budget.

    Args:
        settings: with a budget.
        members: each content once.
        fetch: bytes to transfer, of those whose files can be read.
        prices: what members take; needed for a budget of time.
    """
    budget = read_budget(settings.budget)
    readable = [one for one in members if one.name in fetch]
    if budget.kind == "seconds" and prices is not None:
        cost = {one.name: prices.seconds_of(one.name) for one in readable}
    else:  # what is here already is read, and what is elsewhere fetched
        cost = {one.name: float(fetch[one.name] or one.size) for one in readable}
    return choose(readable, cost, budget)


def each_once(found: Series, members: Sequence[Member]) -> tuple[list[Member], dict[str, str]]:
    """The members without those that are the same bytes as another, and which those are of whom."""
    same: dict[str, str] = {}
    for group in found.identical(members):
        same |= {name: kept.name for name, kept in kept_of(group, members).items() if kept.name != name}
    return [one for one in members if one.name not in same], same


def within_budget(
    settings: TrackSettings, found: Series, chosen: Sequence[Member], parts: Parts
) -> tuple[list[Member], pd.DataFrame, list[Note]]:
    """The members that are measured, the table ``choice``, and what is to be said about it.

    A choice is kept as a part: what a run has begun it goes on with, although times differ from try to try.
    """
    distinct, _ = each_once(found, chosen)
    digest = hashlib.sha256(settings.budget.encode())
    for one in chosen:
        digest.update(f"{one.name} {one.size}\n".encode())

    def compute() -> pd.DataFrame:
        words: list[str] = []
        fetch = fetch_sizes(found, distinct, wanted_by(settings), words)
        timed = read_budget(settings.budget).kind == "seconds"
        prices = prices_of(settings, found, distinct, fetch, words) if timed else None
        rows = [
            (one.member.name, one.member.place.step, one.reason, one.cost, read_budget(settings.budget).kind)
            for one in choices(settings, distinct, fetch, prices)
        ]
        return pd.DataFrame(rows, columns=COLUMNS)

    table = parts.part(f"choice-{digest.hexdigest()[:16]}", compute)
    by_name = {one.name: one for one in chosen}
    made = [
        Choice(by_name[row.checkpoint], row.reason, row.cost)
        for row in table.itertuples()
        if row.checkpoint in by_name
    ]
    names = {one.member.name for one in made}
    note = Note("budget", "", sentence_of(made, len(distinct), read_budget(settings.budget)))
    return [one for one in chosen if one.name in names], table, [note]

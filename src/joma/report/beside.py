"""Two runs side by side: what differs in their settings, what each found, claim by claim, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joma.core.claim import Claim
from joma.core.files import Json
from joma.runs.directory import Run

_KEYS = ("line", "layer")


@dataclass(frozen=True)
class Pair:
    """Two runs, as a page shows them beside each other."""

    names: tuple[str, str]
    """The shortest ends of their directories that tell them apart."""
    settings: list[tuple[str, Json, Json]]
    """Name and both values of every setting that differs."""
    claims: list[tuple[Claim, Claim]]
    """The claims that both have judged."""
    layers: pd.DataFrame | None
    """The columns that both tables of layers have, each of the first run beside that of the second."""


def pair_of(runs: Sequence[Run]) -> Pair | None:
    """The comparison of two runs of one kind; None where there are others, or more or fewer."""
    if len(runs) != 2 or runs[0].settings["experiment"] != runs[1].settings["experiment"]:
        return None
    first, second = runs
    names = _names(first.directory, second.directory)
    ours, theirs = (run.settings.get("settings") or {} for run in runs)
    differing = [
        (key, ours.get(key), theirs.get(key))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]
    judged = {claim.id: claim for claim in second.claims}
    claims = [(claim, judged[claim.id]) for claim in first.claims if claim.id in judged]
    tables = [run.tables["layers"] for run in runs if "layers" in run.tables]
    layers = _merge(tables[0], tables[1], names) if len(tables) == 2 else None
    return Pair(names, differing, claims, layers)


def _names(first: Path, second: Path) -> tuple[str, str]:
    a, b = first.absolute(), second.absolute()
    for depth in range(1, max(len(a.parts), len(b.parts)) + 1):
        ends = ("/".join(a.parts[-depth:]), "/".join(b.parts[-depth:]))
        if ends[0] != ends[1]:
            return ends
    return str(a), str(b)


def _merge(first: pd.DataFrame, second: pd.DataFrame, names: tuple[str, str]) -> pd.DataFrame | None:
    keys = [key for key in _KEYS if key in first and key in second]
    shared = [name for name in first if name in second and name not in keys]
    if "layer" not in keys or not shared:
        return None
    both = first.merge(second, on=keys, how="outer", suffixes=("\0a", "\0b"), sort=True)
    ordered = [f"{name}{side}" for name in shared for side in ("\0a", "\0b")]
    called = [f"{name}, {run}" for name in shared for run in names]
    return both[[*keys, *ordered]].set_axis([*keys, *called], axis=1)

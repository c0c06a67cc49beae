"""``joma.digest``: at most ten findings about a run, a model or a series; or what differs between two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from joma.checkpoints.adapters import open_weights
from joma.core.arguments import Array
from joma.core.claim import Claim
from joma.core.errors import InputError
from joma.core.files import is_there, user_path
from joma.core.progress import Progress
from joma.instruments.monitor.folder import is_monitored
from joma.instruments.monitor.page import find_monitored
from joma.instruments.probe import ProbeSettings
from joma.instruments.track import TrackSettings
from joma.report.results import RunResult, read
from joma.runs.description import SETTINGS
from joma.runs.finding import Digest, Finding
from joma.runs.result import JobResult

CHANCE = 0.05
"""Probability that two groups of runs that differ by their seeds only have any finding at all."""
FEWEST = 3
"""Seeds a side that are needed to know their spread."""
_SEEDS = ("seed", "run")
_PLACES = ("layer", "head", "matrix", "line")
_DIFFERS, _VERDICT, _UNKNOWN = 60.0, 55.0, 1.0
Subject = str | Path | RunResult | JobResult
"""A folder, a model's name, or a result."""


def digest(first: Subject, second: Subject | None = None, *, quiet: bool = False) -> Digest:
    """Say what stands out: at most ten findings in order of weight, each with its number and certainty.

    Args:
        first: a run directory, the folder of a ``joma.Monitor``, a model (its weights are probed), a series
            of checkpoints (their weights are audited and tracked), or a result.
        second: another of the same kind. The findings are then what differs between the two beyond the spread
            of their seeds, all metrics together with a false finding in one of twenty comparisons; and the
            claims whose verdict differs.
        quiet: no progress on stderr.

    Returns:
        A digest: ``findings``, each with ``what, where, metric, value, unit, certainty, look_next, weight``;
        ``as_json()`` by the schema ``joma.runs.finding.SCHEMA``.

    Raises:
        InputError: no such folder, or two results of different kinds.
        RunDirectoryError: an unfinished or damaged run.

    Examples:
        >>> found = joma.digest(joma.run("fig4", quiet=True))
        >>> len(found.findings) <= 10
        True
        >>> found.as_json()["findings"][0]["rank"]
        1
    """
    one = _open(first, quiet)
    if second is None:
        return one.digest()
    return compare(one, _open(second, quiet))


def compare(first: RunResult | JobResult, second: RunResult | JobResult) -> Digest:
    """What differs between two results of one kind, beyond the spread of their seeds.

    Raises:
        InputError: they are of different kinds.
    """
    names = (_name(first), _name(second))
    if names[0] != names[1]:
        raise InputError(f"digest: {names[0]} and {names[1]} are not of one kind; give two runs of one.")
    found = _verdicts(first.claims, second.claims) + _differences(first.tables, second.tables)
    return Digest.of(f"{names[0]}, the second beside the first", found)


def _open(subject: Subject, quiet: bool) -> RunResult | JobResult:
    """What the words name, measured where it is a model or a series."""
    if isinstance(subject, RunResult | JobResult):
        return subject
    path = user_path(subject)
    if (path / SETTINGS).exists() or is_monitored(path):
        return read(path)
    if is_there(path) and path.is_dir() and len(inside := find_monitored(path)) == 1:
        return read(inside[0])
    job: ProbeSettings | TrackSettings = TrackSettings.of(model=str(subject), weights=True)
    if not is_there(path) or _is_model(path):
        job = ProbeSettings.of(model=str(subject), weights=True)
    return JobResult(job, job.run(Progress(quiet=quiet)))


def _is_model(path: Path) -> bool:
    """Whether weights lie right there; else it is a folder of checkpoints."""
    try:
        open_weights(path)
    except InputError:
        return False
    return True


def _name(result: RunResult | JobResult) -> str:
    return result.name if isinstance(result, RunResult) else result.settings.name()


def _verdicts(ours: list[Claim], theirs: list[Claim]) -> list[Finding]:
    known = {claim.id: claim for claim in theirs}
    return [
        Finding(
            what=f"{claim.statement.rstrip('.')}: {claim.verdict} in the first, {known[claim.id].verdict} in "
            "the second",
            where=claim.id,
            metric="measured",
            value=known[claim.id].measured,
            certainty=f"measured {_number_text(claim.measured)} and "
            f"{_number_text(known[claim.id].measured)}; expected: {claim.expected}",
            look_next="joma report of both: claim by claim",
            weight=_VERDICT,
        )
        for claim in ours
        if claim.id in known and known[claim.id].verdict != claim.verdict
    ]


def _number_text(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.3g}"


def _differences(ours: Mapping[str, pd.DataFrame], theirs: Mapping[str, pd.DataFrame]) -> list[Finding]:
    """Last values by metric and place that differ by Welch's test at ``CHANCE``, divided by their number."""
    tests: list[tuple[float, Finding]] = []
    for name in (name for name in ours if name in theirs):
        pair = [_last_values(tables[name]) for tables in (ours, theirs)]
        if pair[0].empty or pair[1].empty:
            continue
        for key in pair[0].index.intersection(pair[1].index):
            a, b = (one.loc[key].dropna().to_numpy(float) for one in pair)
            if min(len(a), len(b)) >= FEWEST and np.ptp(np.concatenate([a, b])) > 0:
                tests.append(_test(name, [str(part) for part in key], a, b))
    found = [one for chance, one in tests if chance * len(tests) < CHANCE]
    if tests:
        return found
    return [
        Finding(
            what="no number can be compared beyond the spread of seeds",
            certainty=f"a side has fewer than {FEWEST} seeds, or no table has a column seed",
            look_next="joma run with --seeds 3 or more, or joma report of both, side by side",
            weight=_UNKNOWN,
        )
    ]


def _test(name: str, key: list[str], a: Array, b: Array) -> tuple[float, Finding]:
    with np.errstate(all="ignore"):
        found = ttest_ind(b, a, equal_var=False)
    chance = float(found.pvalue)
    equal = np.ptp(a) == np.ptp(b) == 0.0
    chance = 0.0 if equal else (1.0 if np.isnan(chance) else chance)
    places = ", ".join(part for part in key[1:] if part)
    low, high = sorted((float(a.mean()), float(b.mean())))
    size = abs(high - low) / max(abs(low), abs(high), 1e-300)
    return chance, Finding(
        what=f"{key[0].replace('_', ' ')} is {a.mean():.4g} in the first and {b.mean():.4g} in the second",
        where=f"{name}{f', {places}' if places else ''}",
        metric=key[0],
        value=float(b.mean() - a.mean()),
        certainty="no seed differs from another of its side"
        if equal
        else f"seeds alone differ so far with p = {chance:.2g} ({len(a)} and {len(b)} seeds, Welch's test)",
        look_next=f"the table {name} of both; joma report of both, side by side",
        weight=_DIFFERS * (0.5 + 0.5 * min(size, 1.0)),
    )


def _last_values(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each metric and place, a column for each seed: the value of its last step."""
    seed = next((name for name in _SEEDS if name in table), "")
    if not seed or not {"metric", "value"} <= set(table):
        return pd.DataFrame()
    places = [name for name in _PLACES if name in table]
    if "step" in table:
        table = table[table["step"] == table.groupby(seed)["step"].transform("max")]
    words = {name: [_place(name, value) for value in table[name].tolist()] for name in places}
    keyed = table.assign(**words).assign(metric=table["metric"].astype(str))
    keyed = keyed[np.isfinite(keyed["value"].to_numpy(float))]
    return keyed.pivot_table(index=["metric", *places], columns=seed, values="value", aggfunc="mean")


def _place(name: str, value: Any) -> str:
    if pd.isna(value) or value == "":
        return ""
    return f"{name} {int(value) if isinstance(value, float) else value}"

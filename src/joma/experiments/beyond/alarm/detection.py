"""Every rule on every run: first alarms, at a cadence of looks; joma's own detectors among them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joma.experiments.beyond.alarm.rules import RULES, Array, History
from joma.experiments.shared.tables import Row, Rows
from joma.measures.change import published
from joma.measures.change.detector import DetectorState, add_look, began, comparable
from joma.measures.change.e_detector import Evidence, threshold
from joma.measures.change.loss import LossCusum

CADENCES = (1, 10, 50)
ALPHA = 0.05
OURS, WHOLE = "joma: the network", "joma: the whole monitor"
WITHDRAWN, UNJUDGED, OWN_CUSUM = "joma: withdrawn", "joma: not yet judged", "joma: loss CUSUM"
CONFORMAL = "joma: the network, calibrated"
_STREAMS = ("normalised_entropy", "largest_logit", "residual_rms")
Levels = Mapping[tuple[str, int], float]
"""(rule, cadence) -> the level of an alarm."""


@dataclass(frozen=True)
class Network:
    """What joma's detector of the network said of a branch of several bases."""

    branch: str
    end: DetectorState
    evidence: Array
    """(looks, bases) from the branch's first step."""
    valid: Array
    """Likewise: whether the bound's assumptions were seen to hold (1) or not to (0); NaN: not judged yet."""


def watch_networks(found: Mapping[str, History], cadence: int, planned: int) -> Iterator[Network]:
    """Every base and branch, with all its past; a base that alarmed is armed anew at its branches."""
    base = found["base"]
    first = _watch("base", began(*_streams(base).shape[1:]), base, cadence)
    yield first
    alarmed = (first.evidence >= threshold(-(-planned // cadence), ALPHA)).any(axis=0)
    armed = first.end.evidence.log_r.copy()
    armed[:, alarmed] = -np.inf
    begun = dataclasses.replace(first.end, evidence=Evidence(armed))
    for branch, history in found.items():
        if branch != "base":
            yield _watch(branch, begun, history, cadence)


def _watch(branch: str, state: DetectorState, history: History, cadence: int) -> Network:
    streams = _streams(history)
    bases = streams.shape[1]
    evidence, valid = [np.empty((0, bases))], [np.empty((0, bases))]
    for step in history.looks(cadence):
        if step >= history.start:
            state, _ = add_look(state, streams[step], int(step))
            evidence.append(state.evidence.total()[None])
            valid.append(state.valid()[None])
    return Network(branch, state, np.concatenate(evidence), np.concatenate(valid))


def _streams(history: History) -> Array:
    return np.concatenate([comparable(name, history.values[name]) for name in _STREAMS], axis=-1)


def _losses(found: Mapping[str, History]) -> dict[str, Array]:
    """Branch -> (steps, bases): 1 where joma's CUSUM of the loss alarms, or the loss is no number."""
    base = found["base"].values["loss"]
    quiet = [LossCusum() for _ in range(base.shape[1])]
    said = {"base": _feed(quiet, base)}
    for branch, history in found.items():
        if branch != "base":
            said[branch] = _feed(copy.deepcopy(quiet), history.values["loss"][history.start :])
    return said


def _feed(detectors: list[LossCusum], losses: Array) -> Array:
    rows = [
        [
            detector.add(float(loss)) or not np.isfinite(loss)
            for detector, loss in zip(detectors, row, strict=True)
        ]
        for row in losses
    ]
    return np.array(rows, dtype=np.float64)


def alarms(found: Mapping[str, History], levels: Levels, planned: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """First alarm of every rule in every run, and what each run showed of the bound's assumptions.

    Steps are those from the branch's first; NaN for no alarm.

    Args:
        found: of the judged side.
        levels: of the rules that are calibrated.
        planned: steps of a run, for the bound of joma's own.
    """
    rows: Rows = []
    validity: Rows = []
    losses = _losses(found)
    for cadence in CADENCES:
        bound = threshold(-(-planned // cadence), ALPHA)
        for network in watch_networks(found, cadence, planned):
            history = found[network.branch]
            start = history.start
            looks = history.looks(cadence)
            looks = looks[looks >= start]
            beyond = network.evidence >= bound
            first = _firsts(beyond, looks - start)
            at_first = beyond.argmax(axis=0), np.arange(beyond.shape[1])
            valid = network.valid[at_first] if len(looks) else np.full(beyond.shape[1], np.nan)
            own = {
                OURS: np.where(valid == 1, first, np.nan),
                WITHDRAWN: np.where(valid == 0, first, np.nan),
                UNJUDGED: np.where(np.isnan(valid), first, np.nan),
                OWN_CUSUM: _firsts(losses[network.branch] > 0, np.arange(len(losses[network.branch]))),
                CONFORMAL: _firsts(network.evidence >= levels[CONFORMAL, cadence], looks - start),
            }
            own[WHOLE] = np.fmin(own[OURS], own[OWN_CUSUM])
            for rule in RULES:
                level = levels[rule.name, cadence] if rule.level is None else rule.level
                steps = history.looks(cadence if rule.at_cadence else 1)
                said = rule.scores(history, cadence) >= level
                own[rule.name] = _firsts(said[steps >= start], steps[steps >= start] - start)
            of_run: Row = {"branch": network.branch, "cadence": cadence}
            for name, when in own.items():
                rows += [
                    {**of_run, "base": base, "rule": name, "step": float(step)}
                    for base, step in enumerate(when)
                ]
            validity += [
                {**of_run, "base": base, **shown} for base, shown in enumerate(_rows_of(network, history))
            ]
    return pd.DataFrame(rows), pd.DataFrame(validity).astype({"armed_at": float})


def _firsts(said: NDArray[np.bool_], steps: NDArray[np.int64]) -> Array:
    """The first step of each column at which something was said."""
    found = [published.first(column, 1.0) for column in said.T.astype(np.float64)]
    return np.array([np.nan if at is None else float(steps[at]) for at in found])


def _rows_of(network: Network, history: History) -> Rows:
    end, steps = network.end, len(history.values["loss"])
    return [
        {
            "armed_at": end.armed_at,
            "armed_share": 0.0 if end.armed_at is None else 1 - end.armed_at / steps,
            "drift": float(end.drift[base]),
            "variance": float(end.variance[base]),
            "valid": float(valid),
            "largest_evidence": float(network.evidence[:, base].max(initial=-np.inf)),
        }
        for base, valid in enumerate(end.valid())
    ]


def calibrate(found: Mapping[str, History], planned: int) -> dict[tuple[str, int], float]:
    """The level of each calibrated rule: just above the largest score of the healthy calibration branches."""
    levels: dict[tuple[str, int], float] = {}

    def add(key: tuple[str, int], scores: Array) -> None:
        largest = np.max(scores[np.isfinite(scores)], initial=-np.inf)
        levels[key] = max(levels.get(key, -np.inf), float(np.nextafter(largest, np.inf)))

    branches = {branch: history for branch, history in found.items() if branch != "base"}
    for cadence in CADENCES:
        for network in watch_networks(found, cadence, planned):
            if network.branch in branches:
                add((CONFORMAL, cadence), network.evidence)
        for rule in RULES:
            for history in branches.values() if rule.level is None else ():
                looks = history.looks(cadence if rule.at_cadence else 1)
                add((rule.name, cadence), rule.scores(history, cadence)[looks >= history.start])
    # A rule that had nothing to look at has no level that it could reach.
    return {key: np.nan if np.isneginf(level) or level < -1e300 else level for key, level in levels.items()}

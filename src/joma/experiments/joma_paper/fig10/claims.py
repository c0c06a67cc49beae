"""What fig10 claims: what ``joma neurons`` does, of every seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim
from joma.experiments.joma_paper.fig10 import Fig10
from joma.instruments.neurons.claims import superposition_claims

VERDICTS_BY_WEIGHT = ("fails", "not tested", "corrected", "holds")


def claims(settings: Fig10, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Each seed's network beside the untrained ones of all seeds."""
    seeds: list[Mapping[str, pd.DataFrame]] = [tables]
    if "seeds" in tables:
        seeds += [dict(iter(of_seed.groupby("table"))) for _, of_seed in tables["seeds"].groupby("seed")]
    untrained = [of_seed["untrained_neurons"] for of_seed in seeds]
    judged = [superposition_claims(one, "fig10", untrained) for one in seeds if "neurons" in one]
    return [_in_every_seed(list(claims)) for claims in zip(*judged, strict=True)]


def _in_every_seed(claims: list[Claim]) -> Claim:
    """The claim as it is in the seed that decides: one that fails, else one that could not be tested."""
    verdicts = [claim.verdict for claim in claims]
    worst = min(claims, key=lambda c: (VERDICTS_BY_WEIGHT.index(c.verdict), c.measured or 0.0))
    if len(claims) == 1:
        return worst
    counted = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts))
    return dataclasses.replace(worst, evidence=f"{worst.evidence}; {len(claims)} seeds: {counted}")

"""What fig10 claims beyond ``joma neurons``: that superposition is learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import fisher_exact

from joma.claim import Claim, Facts, judge, not_tested
from joma.experiments.fig10 import Fig10
from joma.instruments.neurons.claims import LEVEL, SOURCE, superposition_claims, values_of

VERDICTS_BY_WEIGHT = ("fails", "not tested", "corrected", "holds")


def claims(settings: Fig10, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Does superposition exist, is it frequent, are neurons selective at all; is it learned?"""
    seeds: list[Mapping[str, pd.DataFrame]] = [tables]
    if "seeds" in tables:
        seeds += [dict(iter(of_seed.groupby("table"))) for _, of_seed in tables["seeds"].groupby("seed")]
    judged = [[*superposition_claims(of_seed, "fig10"), learned(of_seed)] for of_seed in seeds]
    return [_in_every_seed(list(claims)) for claims in zip(*judged, strict=True)]


def _in_every_seed(claims: list[Claim]) -> Claim:
    """The claim as it is in the seed that decides: one that fails, else one that could not be tested."""
    verdicts = [claim.verdict for claim in claims]
    worst = min(claims, key=lambda c: (VERDICTS_BY_WEIGHT.index(c.verdict), c.measured or 0.0))
    if len(claims) == 1:
        return worst
    counted = ", ".join(f"{verdict} in {verdicts.count(verdict)}" for verdict in dict.fromkeys(verdicts))
    return dataclasses.replace(worst, evidence=f"{worst.evidence}; of {len(claims)} seeds it {counted}")


def learned(tables: Mapping[str, pd.DataFrame]) -> Claim:
    """Training makes superposition more frequent than the same network has it before training."""
    facts: Facts = {
        "id": "fig10.learned",
        "source": SOURCE + " (implied: patterns are learned)",
        "statement": "the patterns are learned: superposition is more frequent in the trained network than "
        "in the untrained one",
    }
    p, q = (values_of(tables[table], "p_value") for table in ("neurons", "untrained_neurons"))
    if not len(p) or not len(q):
        return not_tested(**facts, reason="in one of the networks no neuron has contexts enough to be scored")
    hits, others = int((p <= LEVEL).sum()), int((q <= LEVEL).sum())
    table = np.array([[hits, len(p) - hits], [others, len(q) - others]])
    chance = float(fisher_exact(table, alternative="greater").pvalue)
    return judge(
        bool(chance < LEVEL),
        **facts,
        expected=f"a larger share of neurons with p <= {LEVEL:.0%} than untrained (Fisher's exact test)",
        measured=hits / len(p),
        null=others / len(q),
        null_description="the same network before training, on the same text",
        evidence=f"{hits} of {len(p)} neurons, untrained {others} of {len(q)}; p = {chance:.2g}, as if "
        "neurons were independent",
    )

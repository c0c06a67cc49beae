"""What fig10 claims beyond ``joma neurons``: that superposition is learned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import fisher_exact

from joma.claim import Claim, Facts, judge, not_tested
from joma.experiments.fig10 import Fig10
from joma.instruments.neurons.claims import LEVEL, SOURCE, superposition_claims, values_of


def claims(settings: Fig10, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Does superposition exist, is it frequent, are neurons selective at all; is it learned?"""
    return [*superposition_claims(tables, "fig10"), learned(tables)]


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

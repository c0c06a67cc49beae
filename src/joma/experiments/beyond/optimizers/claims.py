"""First order in the step for descent and momentum; gone under Adam."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, Statement, above, below
from joma.experiments.beyond.optimizers import ATTENTION, Optimizers
from joma.experiments.beyond.optimizers.run import select


def claims(settings: Optimizers, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """First order in the step for descent and momentum; gone under Adam."""
    found: list[Claim] = []
    source = "JoMA Thm 1, beyond gradient flow"
    for attention in ATTENTION:
        for optimizer in ("sgd", "momentum"):
            slope = _order(tables["rates"], attention, optimizer)
            found.append(
                Statement(
                    f"optimizers.{optimizer}_{attention}_order",
                    source,
                    f"{attention} attention, {optimizer}: the constant is conserved in the limit of small "
                    "steps, at first order.",
                ).judge(
                    above(0.8, slope, of="log-log slope of the drift in the step size")
                    & below(1.2, slope, of="log-log slope of the drift in the step size"),
                    null=_order(tables["rates"], attention, "adam"),
                    null_description="the slope under Adam",
                    evidence=f"Same course, steps down to 1/{2**settings.halvings}.",
                )
            )
        adam = _smallest(tables["rates"], attention, "adam", "constant")
        slope = _order(tables["rates"], attention, "adam")
        found.append(
            Statement(
                f"optimizers.adam_{attention}",
                source,
                f"{attention} attention: Adam keeps nothing of Theorem 1, however small its steps.",
            ).judge(
                above(0.1, adam, of="relative drift at the smallest steps")
                & below(0.3, abs(slope), of="size of its slope in the step size"),
                null=_smallest(tables["rates"], attention, "sgd", "constant"),
                null_description="plain descent at its smallest steps",
                evidence=f"Slope {slope:.2f} in the step size: the drift is not owed to the steps.",
            )
        )
    return found


def _order(table: pd.DataFrame, attention: str, optimizer: str) -> float:
    """Log-log slope of the drift at the end in the step size."""
    ends = select(table, attention, optimizer, "constant").groupby("rate")["value"].median()
    return float(np.polyfit(np.log(ends.index), np.log(ends), 1)[0])


def _smallest(table: pd.DataFrame, attention: str, optimizer: str, metric: str) -> float:
    """Median over the seeds at the smallest steps."""
    chosen = select(table, attention, optimizer, metric)
    return float(chosen[chosen["rate"] == chosen["rate"].min()]["value"].median())

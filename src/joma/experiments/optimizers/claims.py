"""First order in the step for descent and momentum; forgotten under decay; gone under Adam."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.claim import Claim, judge, within
from joma.experiments.optimizers import ATTENTION, Optimizers


def claims(settings: Optimizers, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """First order in the step for descent and momentum; forgotten under decay; gone under Adam."""
    found: list[Claim] = []
    source = "JoMA Thm 1, beyond gradient flow"
    for attention in ATTENTION:
        for optimizer in ("sgd", "momentum"):
            law = float(_select(tables["rates"], attention, optimizer, "law")["value"].max())
            constant = float(_select(tables["rates"], attention, optimizer, "constant")["value"].median())
            slope = _order(tables["rates"], attention, optimizer)
            found += [
                within(
                    law,
                    1e-9,
                    id=f"optimizers.{optimizer}_{attention}_law",
                    source=source,
                    statement=f"{attention} attention, {optimizer}: the drift of the constant is "
                    "known exactly.",
                    null=constant,
                    null_description="the drift itself",
                    evidence="Relative to what the MLP's side moved, largest over seeds and step sizes.",
                ),
                judge(
                    abs(slope - 1) < 0.2,
                    id=f"optimizers.{optimizer}_{attention}_order",
                    source=source,
                    statement=f"{attention} attention, {optimizer}: the constant is conserved in "
                    "the limit of small "
                    "steps, at first order.",
                    expected="log-log slope of the drift in the step size of 1",
                    measured=slope,
                    tolerance=0.2,
                    null=_order(tables["rates"], attention, "adam"),
                    null_description="the slope under Adam",
                    evidence=f"Same course, steps down to 1/{2**settings.halvings}.",
                ),
            ]
        decay = float(_select(tables["rates"], attention, "weight decay", "law")["value"].max())
        ignored = _smallest(tables["rates"], attention, "weight decay", "constant")
        found.append(
            within(
                decay,
                1e-9,
                id=f"optimizers.weight_decay_{attention}",
                source=source,
                statement=f"{attention} attention, weight decay: the constant is forgotten, and "
                "where it is at "
                "each step is known exactly.",
                null=ignored,
                null_description="c constant, smallest steps",
                evidence="Relative to what the MLP's side moved, largest over seeds and step sizes.",
            )
        )
        adam = _smallest(tables["rates"], attention, "adam", "constant")
        slope = _order(tables["rates"], attention, "adam")
        found.append(
            judge(
                adam > 0.1 and abs(slope) < 0.3,
                id=f"optimizers.adam_{attention}",
                source=source,
                statement=f"{attention} attention: Adam keeps nothing of Theorem 1, however small its steps.",
                expected="relative drift above 0.1 at the smallest steps, slope in the step size near 0",
                measured=adam,
                tolerance=0.1,
                null=_smallest(tables["rates"], attention, "sgd", "constant"),
                null_description="plain descent at its smallest steps",
                evidence=f"Slope {slope:.2f} in the step size: the drift is not owed to the steps.",
            )
        )
    return found


def _select(table: pd.DataFrame, attention: str, optimizer: str, metric: str) -> pd.DataFrame:
    return table[
        (table["attention"] == attention) & (table["optimizer"] == optimizer) & (table["metric"] == metric)
    ]


def _order(table: pd.DataFrame, attention: str, optimizer: str) -> float:
    """Log-log slope of the drift at the end in the step size."""
    ends = _select(table, attention, optimizer, "constant").groupby("rate")["value"].median()
    return float(np.polyfit(np.log(ends.index), np.log(ends), 1)[0])


def _smallest(table: pd.DataFrame, attention: str, optimizer: str, metric: str) -> float:
    """Median over the seeds at the smallest steps."""
    chosen = _select(table, attention, optimizer, metric)
    return float(chosen[chosen["rate"] == chosen["rate"].min()]["value"].median())

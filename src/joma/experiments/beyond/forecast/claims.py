"""Where the reduced flow is exact, and what each softmax closure keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Statement, above, at_least, below, within_error
from joma.core.tables import rows
from joma.experiments.beyond.forecast import DATA, EXACT, OTHER, Forecast

HIGH = 0.9
"""What counts as a high correlation, as of ``fig2``, which tests the same formula."""


def claims(settings: Forecast, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Exact for linear and exp; for softmax, Eq. 18 loses the scale and the moving mean keeps it."""
    curves = tables["curves"]
    found = []
    of = "normalised correlation at the end, by the flow of Eq. 18,"
    for attention in EXACT:
        worst = max(_worst(curves, data, attention, "exact", "logit_error") for data in DATA)
        null = min(_ends(curves, data, attention, "exact" + OTHER, "logit_error").min() for data in DATA)
        moved = min(_ends(curves, data, attention, "exact", "attention_moved").min() for data in DATA)
        found.append(
            Statement(
                f"forecast.{attention}",
                "JoMA Sec. 3, Thm 1",
                f"{attention} attention need not be trained: the reduced flow predicts its whole course.",
            ).judge(
                within_error(1e-7, worst, of="relative error of the logits"),
                null=null,
                null_description="the forecast made for another data set of the same kind, at the end",
                evidence="Largest relative error of the logits over all moments, data sets and seeds; "
                f"training moved attention by {moved:.2g} (total variation) at least.",
            )
        )
    for data in DATA:
        printed, right, middle, other = (
            _ends(curves, data, "softmax", closure, "logit_error")
            for closure in ("signed", "moving", "corrected", "moving" + OTHER)
        )
        found.append(
            Statement(
                f"forecast.softmax_{data}",
                "JoMA Eq. 18 (Thm 1, softmax)",
                "z = 1/2 sum_k (v_k^2 - |v_k|^2 bbar), bbar constant: the reduced flow forecasts softmax "
                "attention.",
            ).correct(
                "The corrected formula around the mean attention as it moves does; around the initial "
                "mean the scale of the logits is lost.",
                printed_error=float(printed.median()),
                error=float(right.max()),
                tolerance=0.1,
                also=below(
                    other.min(),
                    right,
                    of="error as corrected",
                    than="any of a forecast for another data set",
                    across="in every seed",
                ),
                null=float(other.min()),
                null_description="least error of the forecast for another data set of the same kind",
                evidence=f"Relative error of the logits at the end, {data} classes: largest of the seeds "
                f"(median {right.median():.3g}), printed: their median; corrected but around the initial "
                f"mean: {middle.median():.3g}; forecast for another data set: {other.min():.3g} or more.",
            )
        )
        correlation, null = (
            _ends(curves, data, "softmax", closure, "logit_correlation")
            for closure in ("signed", "signed" + OTHER)
        )
        found.append(
            Statement(
                f"forecast.correlation_{data}",
                "JoMA Sec. 3",
                "For softmax attention, even with the assumption, the invariance still predicts z_m(t) "
                "fairly well.",
            ).judge(
                at_least(HIGH, correlation, of=of, across="in every seed")
                & above(
                    null.max() + 0.05,
                    correlation,
                    of=of,
                    than="0.05 more than any of another data set's forecast",
                    across="in every seed",
                ),
                null=float(null.max()),
                null_description="largest correlation of Eq. 18's forecast for another data set of the same "
                "kind",
                evidence=f"Smallest of {len(correlation)} seeds, {data} classes. A correlation hides the "
                f"scale: see forecast.softmax_{data}.",
            )
        )
    return found


def select(curves: pd.DataFrame, data: str, attention: str, closure: str, metric: str) -> pd.DataFrame:
    """The curves of one closure and metric, all seeds."""
    return rows(curves, data=data, attention=attention, closure=closure, metric=metric)


def _ends(curves: pd.DataFrame, *key: str) -> pd.Series[float]:
    """The value at the last moment, seed by seed."""
    return select(curves, *key).sort_values("step").groupby("run")["value"].last()


def _worst(curves: pd.DataFrame, *key: str) -> float:
    return float(select(curves, *key)["value"].max())

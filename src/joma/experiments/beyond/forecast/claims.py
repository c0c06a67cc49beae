"""Where the reduced flow is exact, and what each softmax closure keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, correct, judge, within
from joma.experiments.beyond.forecast import DATA, EXACT, OTHER, Forecast


def claims(settings: Forecast, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Exact for linear and exp; for softmax, Eq. 18 loses the scale and the moving mean keeps it."""
    curves = tables["curves"]
    found = []
    for attention in EXACT:
        worst = max(_worst(curves, data, attention, "exact", "logit_error") for data in DATA)
        null = min(_ends(curves, data, attention, "exact" + OTHER, "logit_error").min() for data in DATA)
        moved = min(_ends(curves, data, attention, "exact", "attention_moved").min() for data in DATA)
        found.append(
            within(
                worst,
                1e-7,
                id=f"forecast.{attention}",
                source="JoMA Sec. 3, Thm 1",
                statement=f"{attention} attention need not be trained: the reduced flow predicts its whole "
                "course.",
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
            correct(
                id=f"forecast.softmax_{data}",
                source="JoMA Eq. 18 (Thm 1, softmax)",
                printed="z = 1/2 sum_k (v_k^2 - |v_k|^2 bbar), bbar constant: the reduced flow forecasts "
                "softmax attention.",
                right="The corrected formula around the mean attention as it moves does; around the initial "
                "mean the scale of the logits is lost.",
                printed_error=float(printed.median()),
                error=float(right.max()),
                tolerance=0.1,
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
            judge(
                bool(correlation.min() >= 0.8 and correlation.min() > null.max() + 0.05),
                id=f"forecast.correlation_{data}",
                source="JoMA Sec. 3",
                statement="For softmax attention, even with the assumption, the invariance still predicts "
                "z_m(t) fairly well.",
                expected="normalised correlation at the end of at least 0.8 by the flow of Eq. 18 in every "
                "seed, 0.05 above what another data set's forecast has",
                measured=float(correlation.min()),
                tolerance=0.8,
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
    return curves[
        (curves["data"] == data)
        & (curves["attention"] == attention)
        & (curves["closure"] == closure)
        & (curves["metric"] == metric)
    ]


def _ends(curves: pd.DataFrame, *key: str) -> pd.Series[float]:
    """The value at the last moment, seed by seed."""
    return select(curves, *key).sort_values("step").groupby("run")["value"].last()


def _worst(curves: pd.DataFrame, *key: str) -> float:
    return float(select(curves, *key)["value"].max())

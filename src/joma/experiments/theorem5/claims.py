"""The formula against enumeration, messages and samples; the print; the order of Eq. 8."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

from joma.claim import Claim, correct, judge, within
from joma.experiments.theorem5 import Theorem5

TOLERANCE = 1e-12


FALSE_ALARM = 1e-3


def claims(settings: Theorem5, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The formula against enumeration, messages and samples; the print; the order of Eq. 8."""
    table = tables["cooccurrence"]
    wide = table.pivot(
        index=["depth", "edge_correlation", "ancestor_height"], columns="metric", values="value"
    )
    errors = table[table["metric"] == "sampled"].set_index(wide.index.names)["standard_error"]
    small, deep = wide.loc[[settings.enumerated_depth]], wide.loc[[settings.depth]]
    drawn = deep.dropna(subset="sampled")
    deviation = ((drawn["sampled"] - drawn["formula"]).abs() / errors.loc[drawn.index]).max()
    printed = ((drawn["sampled"] - drawn["printed formula"]).abs() / errors.loc[drawn.index]).max()
    limit = float(norm.isf(FALSE_ALARM / 2 / len(drawn)))
    falls = -deep["sampled"].groupby("edge_correlation").diff().dropna()
    # Counted on the same sequences, two heights deviate together: this noise is on the safe side.
    noise = np.sqrt(errors**2 + errors.groupby("edge_correlation").shift() ** 2).loc[falls.index]
    gain = float((deep.xs(1, level="ancestor_height")["sampled"] / deep["marginal"]).min())
    slopes = _slopes(tables["expansion"])
    return [
        within(
            float((small["enumerated"] - small["formula"]).abs().max()),
            TOLERANCE,
            id="theorem5.enumerated",
            source="JoMA Thm 5 (rho_0 corrected)",
            statement="P[y_l = 1 | y_m = 1] is a function of rho, rho_0, L and H alone.",
            evidence=f"every state of the tree with L = {settings.enumerated_depth}, {len(small)} cases",
            null=float((small["enumerated"] - small["marginal"]).abs().min()),
            null_description="the least error of taking the tokens for independent",
        ),
        within(
            float((deep["messages"] - deep["formula"]).abs().max()),
            TOLERANCE,
            id="theorem5.messages",
            source="JoMA Thm 5 (rho_0 corrected)",
            statement="The same in the deep tree, where states are too many to be enumerated.",
            evidence=f"messages along the path, L = {settings.depth}, {len(deep)} cases",
        ),
        within(
            float(deviation),
            limit,
            id="theorem5.sampled",
            source="JoMA Thm 5 (rho_0 corrected)",
            statement="Tokens drawn from the tree co-occur as the corrected formula says.",
            evidence=f"largest of {len(drawn)} deviations in standard errors; the tolerance is exceeded "
            f"by chance once in {1 / FALSE_ALARM:.0f} runs",
            null=float(printed),
            null_description="the printed formula's largest deviation",
        ),
        correct(
            id="theorem5.printed_bias",
            source="JoMA Thm 5",
            printed="rho_0 = sum_k P[y_0 = k] P[y_l = 0 | y_0 = k].",
            right="rho_0 = sum_k P[y_0 = k] (2 P[y_l = 0 | y_0 = k] - 1).",
            printed_error=float((small["enumerated"] - small["printed formula"]).abs().max()),
            error=float((small["enumerated"] - small["formula"]).abs().max()),
            tolerance=TOLERANCE,
            evidence=f"enumeration, L = {settings.enumerated_depth}, D = {settings.classes}",
        ),
        judge(
            bool((falls / noise).min() > limit),
            id="theorem5.falls",
            source="JoMA Sec. 5",
            statement="Two tokens co-occur the more, the lower their common ancestor.",
            expected=f"every step up lowers the sampled one by more than {limit:.2g} standard errors",
            measured=float((falls / noise).min()),
            tolerance=limit,
            null=1.0,
            null_description="one standard error: the typical difference where height does not matter",
            evidence=f"{len(falls)} steps up, the smallest lowers it by {falls.min():.3g}; siblings "
            f"co-occur at least {gain:.2f} times as often as unrelated tokens",
        ),
        correct(
            id="theorem5.order_of_equation_8",
            source="JoMA Eq. 8",
            printed="P = 1 - H/L + O(eps^2): the error falls with the square of eps.",
            right="P = 1 - H/L + eps H(2H - L)/(2L) + O(eps^2): the print's own error is O(eps).",
            printed_error=float((2 - slopes["printed"]).max()),
            error=float(abs(2 - slopes["completed"]).max()),
            tolerance=0.09,
            evidence="2 minus the slope of log |error| against log eps at the two smallest eps, "
            f"every H with 2H != L, L = {settings.depth}",
        ),
    ]


def _slopes(expansion: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Local slope of log |error| against log eps at the two smallest eps whose errors are above rounding."""
    slopes: dict[str, list[float]] = {}
    for (metric, _), curve in expansion.groupby(["metric", "ancestor_height"]):
        seen = curve[curve["value"].abs() > 1e-9].sort_values("eps").head(2)
        x, y = np.log(seen["eps"]), np.log(seen["value"].abs())
        slopes.setdefault(str(metric), []).append(float((y.iloc[1] - y.iloc[0]) / (x.iloc[1] - x.iloc[0])))
    return {metric: np.array(values) for metric, values in slopes.items()}

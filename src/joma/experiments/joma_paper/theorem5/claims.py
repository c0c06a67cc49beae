"""The formula against samples, and what height does to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import norm

from joma.core.claim import Claim, above, statements, within_error
from joma.experiments.joma_paper.theorem5 import Theorem5

FALSE_ALARM = 1e-3

STATEMENTS = statements(
    {
        "theorem5.sampled": "JoMA Thm 5 (rho_0 corrected) | Tokens drawn from the tree co-occur as the "
        "corrected formula says.",
        "theorem5.falls": "JoMA Sec. 5 | Two tokens co-occur the more, the lower their common ancestor.",
    },
    exact=True,
)


def claims(settings: Theorem5, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The formula against samples, and what height does to them."""
    keys = ["edge_correlation", "ancestor_height"]
    wide = tables["cooccurrence"].pivot(index=keys, columns="metric", values=["value", "standard_error"])
    value, error = wide["value"], wide["standard_error"]
    by_formula = {
        name: float(((value["sampled"] - value[name]).abs() / error["sampled"]).max())
        for name in ("formula", "printed formula")
    }
    limit = float(norm.isf(FALSE_ALARM / 2 / len(value)))
    by_rho = "edge_correlation"
    falls = -value["sampled"].groupby(by_rho).diff().dropna()
    # Counted on the same sequences, two tokens deviate together: this noise is on the safe side.
    squares = error["sampled"] ** 2
    steps = falls / np.sqrt(squares + squares.groupby(by_rho).shift()).loc[falls.index]
    others = (value["sampled"] - value["sampled, other token"]).dropna()
    level = others / np.sqrt(squares + error["sampled, other token"] ** 2).loc[others.index]
    gain = float((value["sampled"] / value["marginal"]).xs(1, level="ancestor_height").min())
    what, alike = "fall in standard errors", "the largest difference of tokens of one height"
    return [
        STATEMENTS["theorem5.sampled"].judge(
            within_error(limit, by_formula["formula"]),
            evidence=f"largest of {len(value)} deviations in standard errors; the tolerance is exceeded "
            f"by chance once in {1 / FALSE_ALARM:.0f} runs",
            null=by_formula["printed formula"],
            null_description="the printed formula's largest deviation",
        ),
        STATEMENTS["theorem5.falls"].judge(
            above(limit, steps, of=what, across="at every step up")
            & above(level.abs().max(), steps, of=what, than=alike, across="at every step up"),
            null=level.abs().max(),
            null_description="the largest difference of two tokens of the same height, in standard errors",
            evidence=f"{len(falls)} steps up, the smallest lowers it by {falls.min():.3g}; siblings "
            f"co-occur at least {gain:.2f} times as often as unrelated tokens",
        ),
    ]

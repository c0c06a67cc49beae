"""The shape of G, who has critical points, Eq. 58 and Eq. 59."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, above, at_least, equal, statements, within_error
from joma.core.tables import rows
from joma.experiments.joma_paper.fig9 import Fig9
from joma.experiments.joma_paper.fig9.laws import laws, number_of

STATEMENTS = statements(
    {
        "fig9.slope": "JoMA Fig. 9 | dG/dy = theta_1/p_n > 0.",
        "fig9.convex": "JoMA A.4 | G(y) is convex for y > 1/2.",
        "fig9.none_for_log_concave": "JoMA Lemma 4, Fig. 9 | With Gaussian or uniform-ball data no line "
        "through 0 meets G twice: there is no critical point mu != 0 (contrary to what the lemma's title "
        "and the figure suggest).",
        "fig9.equation_58": "JoMA Eq. 58 | theta_2(0) p_n(0) >= 1/4 (strictly) suffices for critical points.",
        "fig9.ratio_range": "JoMA Eq. 59 | Every s in S lies in (1/2, 1) or (1, 2).",
    },
    exact=True,
)


def claims(settings: Fig9, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Shape of G; who has critical points; Eq. 58 and Eq. 59."""

    curve = tables["curve"]
    wide = {str(name): one for name, one in rows(curve, metric="G").groupby("run")}
    step = 1.0 / (settings.points + 1)
    slope_error = bend = 0.0
    for law in laws(settings):
        one = wide[law.name]
        y, g = one["y"].to_numpy(), one["value"].to_numpy()
        # Without the ends, where G is steep, and the middle, where the Laplace marginal has a kink.
        inner = (np.abs(y[1:-1] - 0.5) < 0.3) & (np.abs(y[1:-1] - 0.5) > 1.5 * step)
        measured = (g[2:] - g[:-2]) / (y[2:] - y[:-2])
        exact = law.theta_1(one["rho"]) / law.density(one["rho"])
        error = np.abs(measured / exact[1:-1] - 1)[inner]
        slope_error = max(slope_error, float(error.max()))
        upper = np.diff(g[y > 0.5], 2)
        bend = min(bend, float(upper.min()))
    names = [law.name for law in laws(settings)]
    strict = [n for n in names if "Laplace" not in n and number_of(tables, n, "log-concave") == 1]
    others = [n for n in names if number_of(tables, n, "log-concave") == 0]
    found = sum(number_of(tables, n, "critical points") for n in strict)
    rise = min(number_of(tables, n, "least rise of ln H") for n in strict)
    null = sum(number_of(tables, n, "critical points") for n in others)
    passing = [n for n in names if number_of(tables, n, "theta_2(0) p(0)") > 0.25 + 1e-9]
    have = [number_of(tables, n, "critical points") for n in passing]
    claims = [
        STATEMENTS["fig9.slope"].judge(
            within_error(60.0 * step**2, slope_error),
            evidence="relative, central differences on the curve for .2 < y < .8; tolerance 60 (step)^2",
        ),
        STATEMENTS["fig9.convex"].judge(at_least(-1e-12, bend, of="second difference")),
        STATEMENTS["fig9.none_for_log_concave"].judge(
            equal(0, found, of="number of critical points") & above(0, rise, of="least rise of ln H"),
            null=null,
            null_description="the multivariate t laws, by the same search",
            evidence=f"least rise of ln H over the distance {settings.distance:g}: {rise:.3g}",
        ),
    ]
    if passing:
        claims.append(
            STATEMENTS["fig9.equation_58"].judge(
                at_least(1, have, of="number of critical points", across="for every law that fulfils it"),
                null=found,
                null_description="log-concave laws, which fall short of it",
                evidence="fulfilled by " + ", ".join(passing),
            )
        )
    else:
        claims.append(
            STATEMENTS["fig9.equation_58"].not_tested(
                "none of the chosen laws fulfils it; add degrees of freedom below 2"
            )
        )
    pairs = tables["pairs"]
    if len(pairs):
        ratios = pairs["value"].to_numpy()
        outside = float(np.maximum(np.maximum(ratios - 2.0, 0.5 - ratios), 0.0).max())
        claims.append(
            STATEMENTS["fig9.ratio_range"].correct(
                f"Ratios a_-/a_+ here reach {ratios.max():.4g}; the range is right only for y "
                "restricted to [1/2, 1).",
                printed_error=outside,
                error=pairs["residual"].max(),
                tolerance=1e-9,
                evidence="how far outside, and the relative residual of Eq. 56 at those points",
            )
        )
    return claims

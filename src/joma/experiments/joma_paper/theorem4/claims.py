"""The law of each kind of attention, along the integrated flows of Eq. 6."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, above, statements, within_error
from joma.experiments.joma_paper.theorem4 import Theorem4
from joma.experiments.joma_paper.theorem4.laws import kinds, limit

TOLERANCE = 1e-6

STATEMENTS = statements(
    {
        "theorem4.along_equation_6": "JoMA Thm 4 and its remarks | Along Eq. 6 the components' ln 1/delta "
        "end up growing in the ratio that Theorem 4 gives for exp attention, and the laws beside it for "
        "linear and softmax attention. (Eq. 6 is not the flow of the paper's own block, whose gate reads "
        "the attended input.)",
    },
    exact=True,
)


def claims(settings: Theorem4, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The law of each kind of attention, beside what the flow without attention makes of it."""
    *names, without = kinds(settings)
    components = range(len(settings.critical_points) - 1)

    def error(flow: str, law: str) -> list[float]:
        """How far the ratios of speeds of a flow are from the law of a kind, relative, by component."""
        pairs = [
            (limit(tables, flow, c, "ratio of speeds"), limit(tables, law, c, "law")) for c in components
        ]
        return [abs(speed / law - 1) for speed, law in pairs]

    worst, null = ({n: pick(error(f or n, n)) for n in names} for pick, f in ((max, ""), (min, without)))
    ratios = ", ".join(f"{name}: {limit(tables, name, 0, 'ratio of speeds'):.6g}" for name in names)
    return [
        STATEMENTS["theorem4.along_equation_6"].judge(
            within_error(TOLERANCE, worst.values(), of="relative error", across="for every kind")
            & above(TOLERANCE, null.values(), of="that without attention", across="for every kind"),
            null=min(null.values()),
            null_description="the least error of any of these laws for the flow without attention",
            evidence=f"worst component, late in the integrated flows; ratios {ratios}",
        )
    ]


def answer(settings: Theorem4, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """The law of exp attention, and what it is about."""
    exp = next(iter(kinds(settings)))
    ratio = limit(tables, exp, 0, "ratio of speeds")
    first, last = settings.critical_points[0], settings.critical_points[-1]
    return [
        f"Along Eq. 6 with exp attention the component of mu = {first:g} converges {ratio:.3g} times as "
        f"fast as that of mu = {last:g}, and Theorem 4 gives {limit(tables, exp, 0, 'law'):.3g}.",
        "This is about Eq. 6 as printed, which is not the flow of the block of Eq. 1 (see block_flow).",
    ]

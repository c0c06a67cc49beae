"""The fates of Theorem 2, and that growth is graded by co-occurrence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from joma.core.claim import Claim, above, below, equal, statements
from joma.core.tables import rows
from joma.experiments.scan_snap.snap_fig4 import NULL, SnapFig4

STATEMENTS = statements(
    {
        "snap_fig4.common_suppressed": "Scan&Snap Fig. 4, Thm 2b | Attention to common tokens is suppressed, "
        "though there are ten of them.",
        "snap_fig4.distinct_rise": "Scan&Snap Thm 2a | Every distinct token's attention logit rises, in the "
        "limit T -> infinity.",
        "snap_fig4.distinct_rise_finite": "Scan&Snap Fig. 4, Thm 2a | Every distinct token's attention logit "
        "rises in the sequences of the figure.",
        "snap_fig4.graded": "Scan&Snap, winners-emergence (c) | z_ml grows faster with larger P(l|m,n).",
    }
)


def claims(settings: SnapFig4, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The fates of Theorem 2, and that growth is graded by co-occurrence."""
    tokens = tables["tokens"]
    mass = rows(tokens, metric="attention mass", kind="common", data="real")
    of_class = mass[mass["length"] < np.inf].groupby(["run", "next_token", "step"])["value"].sum()
    on_common = of_class.groupby("step").mean()
    ended = rows(tokens, metric="attention logit", step=tokens["step"].max())

    def logits(kind: str, data: str, *, finite: bool = True) -> pd.DataFrame:
        chosen = rows(ended, kind=kind, data=data)
        return chosen[(chosen["length"] < np.inf) == finite]

    def fate(name: str, kind: str, sign: int, evidence: str, *, finite: bool = True) -> Claim:
        """Every logit of that kind has that sign, and not all have it where there is nothing to predict."""
        share, null = (
            float((sign * logits(kind, data, finite=finite)["value"] > 0).mean()) for data in ("real", NULL)
        )
        return STATEMENTS[f"snap_fig4.{name}"].judge(
            equal(1, share, of=f"share of {kind} tokens, over all runs, with z {'>' if sign > 0 else '<'} 0")
            & below(1, null, of="the same share in the null"),
            null=null,
            null_description="the same share where the context says nothing of the next token",
            evidence=evidence,
        )

    short = logits("distinct", "real")
    stayed = short[short["value"] <= 0]
    order, null = (_rank_correlation(logits("distinct", data)) for data in ("real", NULL))
    of = "mean rank correlation of z with P(l|n) over a class's distinct tokens"
    return [
        fate(
            "common_suppressed",
            "common",
            -1,
            f"mean mass on them: {on_common.iloc[0]:.3f}, then {on_common.iloc[-1]:.3f}",
        ),
        fate(
            "distinct_rise",
            "distinct",
            1,
            f"{len(short)} distinct tokens over all runs and classes",
            finite=False,
        ),
        fate(
            "distinct_rise_finite",
            "distinct",
            1,
            f"{len(stayed)} of {len(short)} do not; the commonest of these has "
            f"P(l|n) = {stayed['probability'].max():.3g}",
        ),
        STATEMENTS["snap_fig4.graded"].judge(
            above(0.9, order, of=of) & above(null, order, of=of, than="that of the null"),
            null=null,
            null_description="the same where the context says nothing of the next token",
        ),
    ]


def _rank_correlation(distinct: pd.DataFrame) -> float:
    """Mean Spearman correlation of z with P(l|n), by run and class; logits all equal count as 0."""
    found = [
        float(spearmanr(part["value"], part["probability"]).statistic) if np.ptp(part["value"]) > 0 else 0.0
        for _, part in distinct.groupby(["run", "next_token"])
    ]
    return float(np.mean(found))

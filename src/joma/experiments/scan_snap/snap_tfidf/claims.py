"""The reading as tf-idf on both sources, and whether both factors are needed."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Statement, above
from joma.core.tables import rows
from joma.experiments.scan_snap.snap_tfidf import REFERENCES, VARIANTS, SnapTfidf


def claims(settings: SnapTfidf, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The reading, on both sources; and whether both factors are needed."""
    correlations = tables["correlations"]
    source = 'Scan&Snap, slide "Learnable TF-IDF"'
    of, more = "mean rank correlation", "mean correlation less that with the better of tf and idf alone"
    claims = []
    for kind in ("synthetic", "text"):
        part = rows(correlations, source=kind)
        words = f"Learned attention logits rank tokens as tf-idf does ({kind})."
        statement = Statement(f"snap_tfidf.{kind}", source, words)
        if part.empty:
            claims.append(statement.not_tested("no corpus was given (setting corpus)"))
            continue
        trained, shuffled = (
            rows(part, variant=variant).groupby("reference")["value"].mean() for variant in VARIANTS
        )
        margin, two_errors, best = _margin(part)
        evidence = ", ".join(f"{name} {trained[name]:.2f}" for name in REFERENCES)
        claims.append(
            statement.judge(
                above(0.5, trained["tf-idf"], of=of)
                & above(
                    shuffled["tf-idf"] + 0.2,
                    trained["tf-idf"],
                    of=of,
                    than="0.2 more than that of shuffled next tokens",
                )
                & above(two_errors, margin.mean(), of=more, than="two standard errors"),
                null=shuffled["tf-idf"],
                null_description="trained on shuffled next tokens",
                evidence=f"correlations with {evidence}",
            )
        )
    synthetic = rows(correlations, source="synthetic")
    margin, two_errors, best = _margin(synthetic)
    chance, _, _ = _margin(synthetic, "chance")
    claims.append(
        Statement(
            "snap_tfidf.both_factors",
            source,
            "Both factors count: tf-idf ranks better than tf or idf alone (synthetic).",
        ).judge(
            above(two_errors, margin.mean(), of=more, than="two standard errors"),
            null=chance.mean(),
            null_description="tf-idf shuffled over the tokens",
            evidence=f"{len(margin)} last tokens; the better factor is {best}",
        )
    )
    return claims


def _margin(correlations: pd.DataFrame, reference: str = "tf-idf") -> tuple[pd.Series, float, str]:
    """How much better z correlates with a reference than with the better factor; 2 errors; which factor."""
    trained = rows(correlations, variant="trained")
    wide = trained.pivot(index=["run", "last_token"], columns="reference", values="value")
    best = str(wide[["tf", "idf"]].mean().idxmax())
    margin = wide[reference] - wide[best]
    return margin, 2 * float(margin.std()) / len(margin) ** 0.5, best

"""The reading as tf-idf on both sources, and whether both factors are needed."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, judge, not_tested
from joma.experiments.scan_snap.snap_tfidf import REFERENCES, VARIANTS, SnapTfidf


def claims(settings: SnapTfidf, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The reading, on both sources; and whether both factors are needed."""
    correlations = tables["correlations"]
    source = 'Scan&Snap, slide "Learnable TF-IDF"'
    claims = []
    for kind in ("synthetic", "text"):
        part = correlations[correlations["source"] == kind]
        id = f"snap_tfidf.{kind}"
        statement = f"Learned attention logits rank tokens as tf-idf does ({kind})."
        if part.empty:
            reason = "no corpus was given (setting corpus)"
            claims.append(not_tested(id=id, source=source, statement=statement, reason=reason))
            continue
        trained, shuffled = (
            part[part["variant"] == variant].groupby("reference")["value"].mean() for variant in VARIANTS
        )
        margin, two_errors, best = _margin(part)
        evidence = ", ".join(f"{name} {trained[name]:.2f}" for name in REFERENCES)
        claims.append(
            judge(
                bool(trained["tf-idf"] > max(0.5, shuffled["tf-idf"] + 0.2) and margin.mean() > two_errors),
                id=id,
                source=source,
                statement=statement,
                expected="mean rank correlation above 0.5, by 0.2 above that of shuffled next tokens, "
                "and by more "
                "than two standard errors above that with tf and with idf alone",
                measured=trained["tf-idf"],
                null=shuffled["tf-idf"],
                null_description="trained on shuffled next tokens",
                evidence=f"correlations with {evidence}",
            )
        )
    synthetic = correlations[correlations["source"] == "synthetic"]
    margin, two_errors, best = _margin(synthetic)
    chance, _, _ = _margin(synthetic, "chance")
    claims.append(
        judge(
            bool(margin.mean() > two_errors),
            id="snap_tfidf.both_factors",
            source=source,
            statement="Both factors count: tf-idf ranks better than tf or idf alone (synthetic).",
            expected="mean correlation higher than the better factor's by more than two standard errors",
            measured=margin.mean(),
            tolerance=two_errors,
            null=chance.mean(),
            null_description="tf-idf shuffled over the tokens",
            evidence=f"{len(margin)} last tokens; the better factor is {best}",
        )
    )
    return claims


def _margin(correlations: pd.DataFrame, reference: str = "tf-idf") -> tuple[pd.Series, float, str]:
    """How much better z correlates with a reference than with the better factor; 2 errors; which factor."""
    trained = correlations[correlations["variant"] == "trained"]
    wide = trained.pivot(index=["run", "last_token"], columns="reference", values="value")
    best = str(wide[["tf", "idf"]].mean().idxmax())
    margin = wide[reference] - wide[best]
    return margin, 2 * float(margin.std()) / len(margin) ** 0.5, best

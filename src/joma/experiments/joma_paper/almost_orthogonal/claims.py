"""The orders of the drift, what survives any embeddings, and the dimension that is printed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.core.claim import Claim, at_least, between, statements, within_error
from joma.core.tables import rows
from joma.experiments.joma_paper.almost_orthogonal import ATTENTION, AlmostOrthogonal
from joma.theory.coherence import printed_dimension

STATEMENTS = statements(
    {
        **{
            f"almost_orthogonal.survivor_{attention}": f"JoMA Sec. 7 | {attention} attention: the sum of the "
            "invariants over all tokens survives any embeddings."
            for attention in ATTENTION
        },
        "almost_orthogonal.order": "JoMA Sec. 7 | The invariants drift at first order in epsilon: like "
        "1/sqrt(d).",
        "almost_orthogonal.second_order": "JoMA Sec. 7 | With the first-order term put in the rest is of "
        "second order: like 1/d.",
        "almost_orthogonal.typical": "JoMA Sec. 7 | For random embeddings the drift is |v_l||v| / (2 sqrt d) "
        "in root mean square.",
        "almost_orthogonal.dimension": "JoMA Sec. 7 | For M embeddings to have |u.u'| <= epsilon only "
        "d <= 8 epsilon^-2 log M is needed.",
    },
    exact=True,
)


def claims(settings: AlmostOrthogonal, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """First order, second order with the term put in, what survives, and the dimension printed."""
    table, found = tables["drift"], []
    for attention in ATTENTION:
        survivor = rows(table, attention=attention, metric="survivor")["value"]
        drift = _rms(table, attention, "drift")
        found.append(
            STATEMENTS[f"almost_orthogonal.survivor_{attention}"].judge(
                within_error(1e-9, survivor.max()),
                null=float(drift.max()),
                null_description="drift of one token's invariant, lowest dimension",
                evidence=f"Largest over d = {min(settings.dimensions)} ... {max(settings.dimensions)}, M = "
                f"{settings.tokens}.",
            )
        )
    for metric, order, claim in (("drift", -0.5, "order"), ("first_order_rest", -1.0, "second_order")):
        curves = {a: _far(_rms(table, a, metric), settings) for a in ATTENTION}
        slopes = {attention: _slope(curve) for attention, curve in curves.items()}
        worst = max(slopes.values(), key=lambda slope: abs(slope - order))
        shuffled = [
            _slope(curve.sample(frac=1, random_state=k)) for curve in curves.values() for k in range(100)
        ]
        found.append(
            STATEMENTS[f"almost_orthogonal.{claim}"].judge(
                between(order - 0.1, order + 0.1, worst, of="log-log slope in d", across="in every curve"),
                null=float(np.quantile(shuffled, 0.05)),
                null_description="slope below which 1 in 20 curves lies whose dimensions are shuffled",
                evidence="Slopes for d > 3M: "
                + ", ".join(f"{name} {slope:.3f}" for name, slope in slopes.items()),
            )
        )
    ratios = {
        a: np.log(_far(_rms(table, a, "drift"), settings) / _far(_rms(table, a, "typical"), settings))
        for a in ATTENTION
    }
    worst = max(float(np.abs(ratio).max()) for ratio in ratios.values())
    drift, typical = (_far(_rms(table, "exp", m), settings).to_numpy() for m in ("drift", "typical"))
    mistaken = np.abs(np.log(drift[:-1] / typical[1:]))
    found.append(
        STATEMENTS["almost_orthogonal.typical"].judge(
            within_error(0.1, worst, of="|log| of measured over predicted drift"),
            null=float(mistaken.min()) if mistaken.size else None,
            null_description="against the prediction for the next dimension" if mistaken.size else "",
            evidence="Largest |log| of measured over predicted for d > 3M, all kinds of attention, "
            f"{settings.seeds} sets of embeddings each.",
        )
    )
    measured = rows(tables["coherence"], metric="measured")
    epsilons = measured.groupby("dimension")["value"].max()
    excess = [
        printed_dimension(settings.vocabulary, epsilon) / dimension
        for dimension, epsilon in epsilons.items()
        if epsilon < 0.6
    ]
    if excess:
        found.append(
            STATEMENTS["almost_orthogonal.dimension"].judge(
                at_least(1, excess, of="printed dimension over that in which its coherence was measured"),
                evidence="Least ratio of the printed dimension, at the coherence measured, to the dimension "
                f"it was measured in, M = {settings.vocabulary}. True, and about twice what is needed.",
            )
        )
    return found


def _far(curve: pd.Series[float], settings: AlmostOrthogonal) -> pd.Series[float]:
    """Where the dimension is large beside the number of tokens."""
    return curve[curve.index > 3 * settings.tokens]


def _slope(curve: pd.Series[float]) -> float:
    """Log-log slope against the dimensions in their order."""
    return float(np.polyfit(np.log(np.sort(curve.index)), np.log(curve.to_numpy()), 1)[0])


def _rms(table: pd.DataFrame, attention: str, metric: str) -> pd.Series[float]:
    """Root mean square over the seeds, by dimension (orthonormal embeddings left out)."""
    chosen = rows(table, attention=attention, metric=metric)
    return (
        chosen[chosen["dimension"] > 0]
        .groupby("dimension")["value"]
        .agg(lambda v: float(np.sqrt(np.mean(np.square(v)))))
    )

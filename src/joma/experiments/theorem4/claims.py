"""Each law; the bound on lambda; the condition."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from joma.claim import Claim, correct, judge, within
from joma.experiments.theorem4 import Theorem4
from joma.experiments.theorem4.laws import limit, worst
from joma.theory.salience import PRINTED_LAMBDA_BOUND, sharp_bound


def claims(settings: Theorem4, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Each law; the bound on lambda; the condition."""
    tolerance = 1e-6
    null = worst(tables, "none", "ratio of speeds") - 1.0
    sources = {
        "exp": ("exp", "JoMA Thm 4, Eq. 7", "exp((mu_j^2 - mu_k^2)/2)"),
        f"exp, T = {settings.temperature:g}": ("temperature", "JoMA Thm 4", "exp((mu_j^2 - mu_k^2)/(2 T^2))"),
        "linear": ("linear", "JoMA Thm 4, remarks", "sqrt(mu_j^2 + c)/sqrt(mu_k^2 + c)"),
        "softmax, uniform": ("softmax_uniform", "JoMA Thm 4", "exp((mu_j^2 - mu_k^2)/2)"),
        "softmax, skewed": (
            "softmax_skewed",
            "JoMA Thm 4 (not in the paper)",
            "exp[(mu_j^2 - mu_k^2)/2 - (bbar_j - bbar_k)|mu|^2/2]",
        ),
    }
    claims = [
        within(
            worst(tables, name, "relative error"),
            tolerance,
            id=f"theorem4.{key}",
            source=source,
            statement=f"The components' ln 1/delta end up growing as {law}.",
            null=null,
            null_description="without attention the ratio of speeds differs from 1 by",
            evidence="relative error of the law, worst component, late in the integrated flow: "
            f"ratio {limit(tables, name, 0, 'ratio of speeds'):.6g}",
        )
        for name, (key, source, law) in sources.items()
    ]
    exact = tables["deviation"].pivot(index="log_inverse_delta_k", columns="metric", values="value")
    largest = float(exact["lambda"].abs().max())
    sharp = sharp_bound()[1]
    claims.append(
        judge(
            largest <= sharp + 1e-9,
            id="theorem4.bound",
            source="JoMA Thm 4",
            statement=f"|lambda_jk| <= sqrt(2 pi) + 2 = {PRINTED_LAMBDA_BOUND:.4f} (true, loose).",
            expected=f"at most the sharp constant {sharp:.6f}",
            measured=largest,
            tolerance=0.0,
            evidence="all degrees of convergence to ln 1/delta_k = 1e5",
        )
    )
    at = {}
    for which in ("printed", "corrected"):
        times = np.log(exact[f"times the {which} condition"].to_numpy())
        at[which] = float(np.interp(np.log(30.0), times, exact["Lambda"].abs().to_numpy()))
    claims.append(
        correct(
            id="theorem4.condition",
            source="JoMA Thm 4",
            printed="|Lambda| << 1 when delta_k << exp[-(sqrt(2 pi) + 2) exp(-mu_k^2)].",
            right="When delta_k << exp[-C exp(+mu_k^2/2)], C = .8643.",
            printed_error=at["printed"],
            error=at["corrected"],
            tolerance=1.0 / 30.0,
            evidence="|Lambda| where ln 1/delta_k is 30 times what each condition asks",
        )
    )
    return claims

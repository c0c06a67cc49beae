"""The kinds of attention that Theorem 4 is measured for, each with its flow and its law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from joma.dynamics import salience_flow
from joma.experiments.joma_paper.theorem4 import Theorem4
from joma.theory.salience import asymptotic_ratio
from joma.theory.salience_variants import linear_attention_ratio, softmax_attention_ratio


@dataclass(frozen=True)
class Kind:
    """One kind of attention, with critical points ``mu``."""

    mu: NDArray[np.float64]
    attention: salience_flow.Attention
    kappa: float = 1.0
    c: float = 0.0
    bbar: NDArray[np.float64] | None = None

    def log_inverse_delta(self, times: ArrayLike) -> NDArray[np.float64]:
        """ln 1/delta of every component along the integrated flow, (times, components)."""
        course = salience_flow.integrate(
            self.mu, times, attention=self.attention, kappa=self.kappa, c=self.c, bbar=self.bbar
        )
        return course.log_inverse_delta

    def law(self, component: int) -> float:
        """The limit of the ratio of ``component`` to the last one."""
        j, k = self.mu[component], self.mu[-1]
        if self.attention == "none":
            return 1.0
        if self.attention == "linear":
            return float(linear_attention_ratio(j, k, self.c, self.c))
        if self.attention == "exp":
            return float(asymptotic_ratio(j, k, kappa=self.kappa))
        bbar = np.full(self.mu.size, 1 / self.mu.size) if self.bbar is None else self.bbar
        norm = float(self.mu @ self.mu)
        return float(
            softmax_attention_ratio(j, k, bbar_j=bbar[component], bbar_k=bbar[-1], squared_norm=norm)
        )


def kinds(settings: Theorem4) -> dict[str, Kind]:
    """Name -> kind of attention; the last, without any, is the null."""
    mu = np.array(settings.critical_points)
    skewed = np.full(mu.size, (1.0 - settings.skew) / (mu.size - 1))
    skewed[0] = settings.skew
    return {
        "exp": Kind(mu, "exp"),
        f"exp, T = {settings.temperature:g}": Kind(mu, "exp", kappa=settings.temperature**-2),
        "linear": Kind(mu, "linear", c=settings.logit_square),
        "softmax, uniform": Kind(mu, "softmax"),
        "softmax, skewed": Kind(mu, "softmax", bbar=skewed),
        "none": Kind(mu, "none"),
    }


def limit(tables: Mapping[str, pd.DataFrame], name: str, component: int, metric: str) -> float:
    """A number of the table ``limits``."""
    rows = tables["limits"]
    chosen = (rows["run"] == name) & (rows["component"] == component) & (rows["metric"] == metric)
    return float(rows[chosen]["value"].iloc[0])

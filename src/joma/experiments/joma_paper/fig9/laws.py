"""The laws of the data that Fig. 9 compares, and how a table names their numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.experiments.joma_paper.fig9 import Fig9
from joma.theory.isotropic_laws import Gaussian, IsotropicLaw, LaplaceMarginal, MultivariateT, UniformBall


def laws(settings: Fig9) -> list[IsotropicLaw]:
    """Gaussian, balls, the Laplace marginal, multivariate t."""

    return [
        Gaussian(),
        *map(UniformBall, settings.dimensions),
        LaplaceMarginal(),
        *map(MultivariateT, settings.degrees),
    ]


def number_of(tables: Mapping[str, pd.DataFrame], name: str, metric: str) -> float:
    """A number of the table ``laws``."""
    laws = tables["laws"]
    return float(laws[(laws["run"] == name) & (laws["metric"] == metric)]["value"].iloc[0])

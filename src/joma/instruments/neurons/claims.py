"""Are there neurons in superposition, and more than by chance?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.claim import Claim
from joma.experiments.fig10.claims import (
    different_queries,
    more_than_chance,
    selective,
    some_neuron,
    unrelated,
)
from joma.instruments.neurons import NeuronsRun

_TESTED = (some_neuron, more_than_chance, unrelated, different_queries, selective)


def claims(settings: NeuronsRun, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Those of Fig. 10 that need no untrained network beside the model."""
    return [claim(tables, "neurons") for claim in _TESTED]

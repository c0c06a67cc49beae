"""What a probe found as panels, and as a terminal shows it."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.instruments.probe import ProbeRun
from joma.reporting.probe_figure import draw_probe
from joma.reporting.probe_text import probe_as_text


def draw(settings: ProbeRun, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Heat maps of layer and head, entropy by position, profiles over layers."""
    return draw_probe(tables)


def printed(settings: ProbeRun, tables: Mapping[str, pd.DataFrame]) -> str:
    """A row per layer with its legend; of weights, the stable rank of each layer's matrices."""
    if not settings.weights:
        return probe_as_text(tables)
    ranks = tables["ranks"][tables["ranks"]["metric"] == "stable_rank"]
    of_layer = ranks.pivot_table(index="layer", columns="matrix", values="value", sort=False)
    worst = ranks["error_bound"].max()
    return "\n".join(
        [
            f"stable_rank = ||W||_F^2 / sigma_1^2 of {len(ranks)} matrices, means over those of one name in "
            f"a layer; error bound at most {worst:.2g}",
            of_layer.to_string(float_format=lambda value: f"{value:.3f}", na_rep="-"),
        ]
    )

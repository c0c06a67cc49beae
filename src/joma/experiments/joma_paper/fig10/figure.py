"""Scores by layer, and the contexts of a few neurons."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.experiments.joma_paper.fig10 import Fig10
from joma.instruments.neurons import figure

CAPTION = "Scores beside the nulls', by layer, and a few neurons' contexts with attended tokens in bold."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Fig10, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    return figure.draw(settings, tables)

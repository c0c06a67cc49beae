"""Mean correlation with each reference, trained beside shuffled, for each source."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_tfidf import REFERENCES, VARIANTS, SnapTfidf

CAPTION = "Mean correlation with each reference, trained beside shuffled, for each source."
"""What the figure shows, for those who cannot see it."""


def draw(settings: SnapTfidf, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    correlations = tables["correlations"]
    sources = list(correlations["source"].unique())
    figure, axes = panels(1, len(sources), width=4.6, height=3.4, sharey=True)
    places = np.arange(len(REFERENCES))
    for axis, source in zip(axes[0], sources, strict=True):
        part = correlations[correlations["source"] == source]
        for offset, colour, variant in zip((-0.2, 0.2), PALETTE, VARIANTS, strict=False):
            values = part[part["variant"] == variant].groupby("reference")["value"]
            mean = values.mean().reindex(REFERENCES)
            error = (values.std() / values.count() ** 0.5).reindex(REFERENCES)
            label = "trained" if variant == "trained" else "next tokens shuffled"
            axis.bar(places + offset, mean, 0.38, yerr=2 * error, color=colour, ecolor=ink(), label=label)
        axis.axhline(0, color=ink(), linewidth=0.8)
        names = ["tf-idf shuffled\nover tokens" if name == "chance" else name for name in REFERENCES]
        axis.set_xticks(places, names)
        axis.set_axisbelow(True)
        axis.grid(axis="x", visible=False)
        lasts = len(part[["run", "last_token"]].drop_duplicates())
        name = "synthetic tokens" if source == "synthetic" else f"text: {settings.corpus}"
        axis.set_title(f"{name} ({lasts} last tokens)")
    axes[0, 0].set_ylabel("rank correlation with learned z")
    title = "mean over the last tokens, ± 2 standard errors"
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, title=title)
    return figure

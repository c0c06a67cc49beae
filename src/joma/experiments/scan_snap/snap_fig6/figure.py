"""A panel for each number of last tokens."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_fig6 import SnapFig6

CAPTION = "A panel for each number of last tokens; the authors' means, where given, as open circles."
"""What the figure shows, for those who cannot see it."""


def draw(settings: SnapFig6, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    cells, authors = tables["cells"], tables["authors"]
    columns = sorted(cells["last_tokens"].unique())
    figure, axes = panels(1, len(columns), width=3.3, height=3.5, sharey=True)
    for axis, last in zip(axes[0], columns, strict=True):
        panel = cells[cells["last_tokens"] == last]
        groups = list(panel.groupby("eta_z"))
        for k, (colour, (eta_z, line)) in enumerate(zip(PALETTE * 9, groups, strict=False)):
            aside = 1.045 ** (k - (len(groups) - 1) / 2)  # bars beside each other, not upon each other
            axis.errorbar(
                aside * line["ratio"],
                line["mean"],
                yerr=line["standard_error"],
                color=colour,
                marker="o",
                markersize=3.5,
                capsize=2,
                label=rf"$\eta_Z$ = {eta_z:g}",
            )
            theirs = authors[(authors["last_tokens"] == last) & (authors["eta_z"] == eta_z)]
            axis.plot(
                aside * theirs["ratio"],
                theirs["authors_mean"],
                "o",
                mfc="none",
                mec=colour,
                markersize=8,
                mew=1.1,
            )
        ratios = sorted(panel["ratio"].unique())
        axis.set_xscale("log")
        axis.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
        axis.minorticks_off()
        classes = last * 2
        axis.set_title(f"{last} last, {classes} next tokens")
        axis.set_xlabel(r"$\eta_Y/\eta_Z$")
    axes[0, 0].set_ylabel("entropy of $c_n$ over\ndistinct tokens (nats)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if len(authors):
        (ring,) = axes[0, 0].plot([], [], "o", mfc="none", mec=ink(), markersize=8, mew=1.1)
        handles, labels = [*handles, ring], [*labels, "the authors' mean"]
    title = f"mean of {cells['seeds'].max()} seeds, ± one standard error"
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), title=title)
    return figure

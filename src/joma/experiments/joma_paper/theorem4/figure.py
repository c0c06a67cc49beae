"""Ratios and laws for each salient component; Lambda and its bound."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.theorem4 import Theorem4
from joma.experiments.joma_paper.theorem4.laws import limit

CAPTION = "A panel of ratios and laws for each salient component (two at most); then Lambda and its bound."
"""What the figure shows, for those who cannot see it."""


def draw(settings: Theorem4, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    mu = settings.critical_points
    shown = range(min(2, len(mu) - 1))
    figure, axes = panels(1, len(shown) + 1, width=4.5, height=4.0)
    figure.set_layout_engine("constrained", wspace=0.05)
    for component, axis in zip(shown, axes[0], strict=False):
        runs = tables["ratio"].query("component == @component").groupby("run", sort=False)
        for k, (name, one) in enumerate(runs):
            part = one[one["log_inverse_delta_k"] > 0.02]
            look = {"color": PALETTE[k], "marker": "os^DvX"[k]}
            dashes = (0, (5, 4)) if name == "softmax, uniform" else "-"  # lies upon exp
            courses = part["log_inverse_delta_k"], part["value"]
            axis.plot(*courses, ls=dashes, markevery=(2 * k, 12), label=name, ms=4.5, **look)
            law = limit(tables, str(name), component, "law")
            axis.axhline(law, ls="--", lw=1.0, color=PALETTE[k], alpha=0.8)
            # Its marker tells a law's line from the others where colour does not.
            edge = axis.get_yaxis_transform()
            axis.plot(1.0, law, transform=edge, ms=8, mfc="none", mew=1.3, clip_on=False, **look)
        axis.set(xscale="log", yscale="log", xlabel="ln 1/δₖ of the least salient component")
        axis.set(ylabel="ln 1/δⱼ : ln 1/δₖ", title=f"μⱼ = {mu[component]:g}, μₖ = {mu[-1]:g}")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5), numticks=9))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    handles, labels = axes[0, 0].get_legend_handles_labels()
    handles += axes[0, 0].plot([], [], "--", color=ink(), lw=1.0, marker="o", ms=8, mfc="none")
    labels.append("the law of each (marker at the right edge)")
    figure.legend(handles, labels, loc="outside lower left", ncols=4, title="attention")
    right = axes[0, -1]
    exact = tables["deviation"].pivot(index="log_inverse_delta_k", columns="metric", values="value")
    right.plot(exact.index, exact["Lambda"].abs(), color=PALETTE[0], label="|Λ|, exact")
    right.plot(exact.index, exact["bound on Lambda"], "--", color=ink(), lw=1.1, label="sharp bound")
    for colour, which, dashes in ((PALETTE[1], "printed", ":"), (PALETTE[2], "corrected", "-.")):
        at = float((exact.index / exact[f"times the {which} condition"]).iloc[0])
        right.axvline(at, color=colour, ls=dashes, label=f"condition as {which}")
    right.set(xscale="log", yscale="log", xlabel="ln 1/δₖ of the least salient component")
    right.set(ylabel="|Λ|, relative deviation")
    right.set(title=f"exp attention, μⱼ = {mu[0]:g}: from where it holds", ylim=(1e-6, 1e3))
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2, title="right panel")
    return figure

"""The components of one node's weights, and the losers against Theorem 2."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.figures import ink, panels
from joma.experiments.joma_paper.fig3 import ATTENTION, GROWING, Fig3
from joma.experiments.joma_paper.fig3.claims import by_token

CAPTION = "Components of ``v_0`` of one seed, with and without attention; all seeds' losers and Theorem 2."
"""What the figure shows, for those who cannot see it."""

SHOWN = 4


def draw(settings: Fig3, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure, axes = panels(1, 3, width=4.4, height=3.6)
    figure.set_layout_engine("constrained", wspace=0.06)
    first, final = tables["components"].query("run == 0"), tables["final"]
    seeds = final["run"].nunique()
    limits = by_token(final, "trained").xs(0, level="run")["weight_limit"]
    shown = list(range(min(SHOWN, len(limits))))
    # Where it ends largest, with attention trained: beside the first tokens, in both panels.
    ended = first.query("attention == 'trained' and step == step.max()").set_index("token")["value"]
    shown = list(dict.fromkeys([*shown, int(ended.abs().idxmax())]))
    axes[0, 1].sharey(axes[0, 0])
    for ax, attention in zip(axes[0, :2], ATTENTION, strict=True):
        curves = first.query("attention == @attention")
        _draw_components(ax, curves, shown, limits if attention == "trained" else None)
        ax.set_title(f"attention {attention} (first of {seeds} seeds)")
    axes[0, 0].legend(loc="lower left", fontsize=7.5)
    _draw_losers(axes[0, 2], by_token(final, "trained"))
    axes[0, 2].set_title(f"losers against Theorem 2 ({seeds} seeds)")
    return figure


def _draw_components(
    ax: Axes, curves: pd.DataFrame, shown: list[int], limits: pd.Series[float] | None
) -> None:
    """Courses of the tokens ``shown``; where given, Theorem 2's limit of each, in the legend if infinite."""
    wide = curves.pivot_table(index="step", columns="token", values="value")
    for token in shown:
        label = f"token {token}"
        if limits is not None and not np.isfinite(limits[token]):
            label += f" (limit {'−' if limits[token] < 0 else '+'}∞)"
        (line,) = ax.plot(wide.index.to_numpy(), wide[token].to_numpy(), label=label)
        if limits is not None and np.isfinite(limits[token]):
            ax.axhline(limits[token], color=line.get_color(), linestyle=":", linewidth=1.2)
    if limits is not None:
        ax.plot([], [], color=ink(), linestyle=":", linewidth=1.2, label="Theorem 2's limit, if finite")
    ax.set(xlabel="gradient steps", ylabel=r"components of $v_0$")


def _draw_losers(ax: Axes, final: pd.DataFrame) -> None:
    losers = final[(final["norm_growth"] <= GROWING) & np.isfinite(final["weight_limit"])]
    ax.plot(losers["weight_limit"], losers["weight"], "o", ms=4, alpha=0.7, label="saturated tokens")
    reach = 1.1 * float(losers["weight_limit"].abs().max())
    ax.plot([-reach, reach], [-reach, reach], color=ink(), linestyle="--", linewidth=1, label="equal")
    ax.set(xlabel="Theorem 2's limit", ylabel="$v_0$ at the end")
    ax.legend(loc="upper left")

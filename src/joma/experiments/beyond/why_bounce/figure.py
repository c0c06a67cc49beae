"""Entropy of the branches, what the rise is divided into, and what the losses are."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.core.tables import rows
from joma.experiments.beyond.why_bounce import WhyBounce
from joma.experiments.beyond.why_bounce.run import FORBIDDEN, FORWARD, HELD, ORDER
from joma.experiments.beyond.why_bounce.sets import EMBEDDINGS, MLP, QUERIES_KEYS
from joma.instruments.branch import TWIN

CAPTION = (
    "Mean entropy of the twin and of branches; shares of the rise by set of parameters, each seed a point; "
    "held-out loss less the twin's."
)
"""What the figure shows, for those who cannot see it."""
_SHOWN = {
    TWIN: "twin",
    f"{QUERIES_KEYS}; dip": f"{QUERIES_KEYS} frozen",
    f"{EMBEDDINGS}; dip": "embeddings frozen",
    f"{MLP}; dip": "MLP frozen",
    HELD: HELD,
    FORBIDDEN: FORBIDDEN,
}
_WAYS = {"frozen": "o", "put back": "s", "brought": "^", "all else frozen": "x"}


def draw(settings: WhyBounce, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    depth = max(settings.layers)
    own = {name: rows(table, depth=depth) for name, table in tables.items()}
    figure: Figure
    figure, axes = panels(1, 3, width=4.8, height=4.0)
    for number, (branch, label) in enumerate(_SHOWN.items()):
        # Branches begin at the dip of each seed: a mean where all seeds are there.
        by_step = rows(own["curves"], branch=branch).pivot(index="step", columns="seed", values="value")
        colour = ink() if branch == TWIN else PALETTE[(number - 1) % len(PALETTE)]
        axes[0, 0].plot(
            by_step.dropna().mean(axis=1), color=colour, label=label, lw=2 if branch == TWIN else 1.2
        )
    axes[0, 0].set(xlabel="minibatch", ylabel="entropy of the top layer (nats)")
    axes[0, 0].legend(fontsize=7)
    _draw_shares(axes[0, 1], own["sets"])
    losses = rows(own["losses"], text="held-out", tokens="all")
    for place, branch in enumerate((HELD, FORWARD, FORBIDDEN, ORDER)):
        values = rows(losses, branch=branch)["value"]
        axes[0, 2].plot([place] * len(values), values, "o", color=PALETTE[0], alpha=0.8)
        axes[0, 2].hlines(values.mean(), place - 0.3, place + 0.3, color=ink())
    axes[0, 2].axhline(0, color=ink(), lw=0.8)
    names = [name.replace(" ", "\n", 1) for name in (HELD, FORWARD, FORBIDDEN, ORDER)]
    axes[0, 2].set_xticks(range(4), names, fontsize=7)
    axes[0, 2].set(ylabel="held-out loss less the twin's (nats)", xlim=(-0.5, 3.5))
    return figure


def _draw_shares(axis: Axes, sets: pd.DataFrame) -> None:
    at_dip = rows(sets, time="dip", way=list(_WAYS))
    names = list(dict.fromkeys(at_dip["set"]))
    for number, (way, marker) in enumerate(_WAYS.items()):
        part = rows(at_dip, way=way)
        heights = [names.index(name) + 0.15 * (number - 1.5) for name in part["set"]]
        axis.plot(part["value"], heights, marker, ls="none", color=PALETTE[number], ms=4, label=way)
    axis.axvline(0, color=ink(), lw=0.8)
    axis.axvline(1, color=ink(), lw=0.8, ls=":")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set(xlabel="share of the rise, lost or brought")
    axis.legend(fontsize=7)

"""How many tensors of each member are named, and with which fault."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.core.tables import rows
from joma.instruments.audit import AuditSettings

CAPTION = "Every member in the order of the steps: how many of its tensors are named, by fault."
"""What the figure shows, for those who cannot see it."""
_LABELS = 30


def draw(settings: AuditSettings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(width=7.0)
    faults = tables["faults"]
    # What cannot even be listed is no member, and is named all the same.
    names = list(dict.fromkeys([*tables["members"]["member"], *faults["member"]]))
    place = {name: number for number, name in enumerate(names)}
    below = np.zeros(len(names))
    for number, word in enumerate(dict.fromkeys(faults["fault"])):
        heights = np.zeros(len(names))
        for one in rows(faults, fault=word).itertuples():
            heights[place[one.member]] += max(1, len(one.tensors))
        axes[0, 0].bar(
            range(len(names)), heights, bottom=below, color=PALETTE[number % len(PALETTE)], label=word
        )
        below += heights
    shown = list(range(0, len(names), max(1, -(-len(names) // _LABELS))))
    axes[0, 0].set_xticks(shown, [names[number] for number in shown], rotation=90, fontsize=7)
    axes[0, 0].set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes[0, 0].set_ylabel("tensors that are named")
    if len(faults):
        axes[0, 0].legend()
    else:
        axes[0, 0].set(title="no member is named", ylim=(0, 1))
    return figure

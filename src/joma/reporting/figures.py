"""One look for every figure: made without pyplot, legible on paper and on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers too; black comes from the theme.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c6d31")

_COMMON: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "savefig.dpi": 160,
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
}
_THEMES = {
    "light": {"ink": "#1b1f24", "paper": "#ffffff"},
    "dark": {"ink": "#e6e8ea", "paper": "#16191d"},
}


@contextmanager
def style(theme: str = "light") -> Iterator[None]:
    """Draw in joma's style, in the theme ``light`` or ``dark``, while the context lasts."""
    ink, paper = _THEMES[theme]["ink"], _THEMES[theme]["paper"]
    colours: dict[str, Any] = {
        "axes.prop_cycle": cycler(color=list(PALETTE)),
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": ink,
        "figure.facecolor": paper,
        "axes.facecolor": paper,
        "savefig.facecolor": paper,
    }
    settings: Any = {**_COMMON, **colours}
    with mpl.rc_context(settings):
        yield


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 4.6, height: float = 3.2, **kwargs: Any
) -> tuple[Figure, Any]:
    """A figure of ``rows`` x ``columns`` axes, each ``width`` x ``height`` inches.

    Returns the figure and a two-dimensional array of its axes. Further keywords go to
    ``Figure.subplots`` (``sharex``, ``sharey``). Call it inside ``draw``, which runs within
    :func:`style`; use no fixed black or white in a figure, so that both themes can show it.
    """
    figure = Figure(figsize=(width * columns, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def ink() -> str:
    """The theme's text colour, for lines that other plots would draw in black."""
    return str(mpl.rcParams["text.color"])


def square_root_steps(axis: Axes, last: int) -> None:
    """The horizontal axis from step 0 to ``last``, on a scale that shows the first steps too."""
    axis.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    axis.set_xlim(0, last)
    axis.set_xticks([round(share * last) for share in (0, 0.02, 0.1, 0.3, 0.6, 1)])

"""The look of every figure, in two themes: legible on paper and on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from cycler import cycler

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

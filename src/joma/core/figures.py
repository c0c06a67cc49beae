"""One look for every figure: made without pyplot, legible on paper and on a phone, light and dark."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.style import PALETTE, style

__all__ = ["PALETTE", "drawn_in_notebooks", "ink", "panels", "shade", "square_root_steps", "style"]


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 4.6, height: float = 3.2, **kwargs: Any
) -> tuple[Figure, Any]:
    """A figure of ``rows`` x ``columns`` axes, each ``width`` x ``height`` inches.

    Returns the figure and a two-dimensional array of its axes. Further keywords go to
    ``Figure.subplots`` (``sharex``, ``sharey``). Call it inside ``draw``, which runs within
    ``style``; use no fixed black or white in a figure, so that both themes can show it.
    """
    figure = Figure(figsize=(width * columns, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


class _NotebookFigure(Figure):
    """A figure that a notebook shows as a picture, whether or not pyplot is set up there."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", facecolor=self.get_facecolor())
        return content.getvalue()


def drawn_in_notebooks(figure: Figure) -> Figure:
    """Make a notebook show this figure as a picture, and return it."""
    figure.__class__ = _NotebookFigure
    return figure


def ink() -> str:
    """The theme's text colour, for lines that other plots would draw in black."""
    return str(mpl.rcParams["text.color"])


def shade(number: int, total: int) -> tuple[float, float, float, float]:
    """The colour of one of so many layers, seen on light and on dark paper."""
    return mpl.colormaps["viridis"](0.25 + 0.65 * number / max(1, total - 1))


def square_root_steps(axis: Axes, last: int) -> None:
    """The horizontal axis from step 0 to ``last``, on a scale that shows the first steps too."""
    axis.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0.0)), np.square))
    axis.set_xlim(0, last)
    axis.set_xticks([round(share * last) for share in (0, 0.02, 0.1, 0.3, 0.6, 1)])

"""The figure of a monitored run: a panel for each quantity, ticks that can be read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from joma.core.style import style
from joma.instruments.monitor.figure import draw_monitor


def table(norms: np.ndarray) -> pd.DataFrame:
    """Loss, gradient norm and ranks of 40 steps."""
    steps = np.arange(len(norms))
    rows = [
        pd.DataFrame({"step": steps, "metric": metric, "value": values, "module": module, "layer": layer})
        for metric, values, module, layer in (
            ("loss", 8 - 0.1 * steps, "", None),
            ("gradient_norm", norms, "", None),
            ("stable_rank", 34.0 - 0.7 * steps, "lower", 0),
        )
    ]
    return pd.concat(rows, ignore_index=True).assign(head=None, call=0)


def drawn(norms: np.ndarray) -> Figure:
    with style("dark"):
        figure = draw_monitor(table(norms), [])
        figure.draw_without_rendering()
    return figure


def labels(figure: Figure, number: int) -> list[str]:
    """What stands at the y ticks of a panel, within its limits."""
    axis = figure.axes[number]
    low, high = axis.get_ylim()
    ticks = [*axis.yaxis.get_major_ticks(), *axis.yaxis.get_minor_ticks()]
    return [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high]


def test_each_panel_says_what_it_shows() -> None:
    figure = drawn(np.linspace(1, 30, 40))
    titles = [axis.get_title() for axis in figure.axes[:5]]
    assert titles[0] == "loss"
    assert titles[1] == "gradient norm"
    assert titles[2:] == ["attention entropy / log n", "largest logit", "stable rank, a line a layer"]


@pytest.mark.parametrize("last", [0.5 + 1e-6, 40.0])
def test_ticks_are_plain_and_apart(last: float) -> None:
    """Norms that are clipped to 0.5 look the same, not like noise of eight digits."""
    figure = drawn(np.linspace(0.5, last, 40))
    for number in (1, 4):
        shown = [label for label in labels(figure, number) if label]
        assert len(shown) >= 2
        assert all(len(label) <= 4 and "times" not in label for label in shown)
        assert len(set(shown)) == len(shown)
    low, high = figure.axes[1].get_ylim()
    assert low < 0.45
    assert high > 0.55

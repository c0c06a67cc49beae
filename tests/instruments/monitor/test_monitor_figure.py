"""The figure of a monitored run: a panel for each quantity, ticks that can be read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from joma.core.style import style
from joma.instruments.monitor.alarms.messages import Message
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


def with_heads(values: np.ndarray, metric: str) -> pd.DataFrame:
    """A heat map's rows, two heads of one layer."""
    rows = [
        {"step": step, "metric": metric, "value": value, "module": "a", "layer": 0, "head": head, "call": 0}
        for head in range(2)
        for step, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_each_panel_says_what_it_shows_and_what_was_not_measured_has_none() -> None:
    figure = drawn(np.linspace(1, 30, 40))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["loss", "gradient norm", "stable rank, a line a layer"]


def test_colours_follow_the_values_without_stretching_noise_and_see_negative_logits() -> None:
    def limits(values: np.ndarray, metric: str) -> tuple[float, float, np.ndarray]:
        with style("light"):
            figure = draw_monitor(with_heads(values, metric), [])
            figure.draw_without_rendering()
        (mesh,) = figure.axes[0].collections
        low, high = mesh.get_clim()
        return low, high, np.asarray(mesh.get_array())

    assert limits(np.linspace(0.6, 0.9, 20), "normalised_entropy")[:2] == pytest.approx((0.6, 1))
    assert limits(1 - 1e-5 * np.arange(20), "normalised_entropy")[:2] == pytest.approx((0.9, 1))
    low, high, shown = limits(np.linspace(-2533, -5, 20), "largest_logit")
    assert (low, high) == (1, 100)
    assert np.isfinite(shown).all()
    assert shown.max() == 100


def test_the_alarm_lies_on_top_and_its_line_is_in_every_panel() -> None:
    kinds = ("alarm", "state", "spike", "not judged")
    messages = [Message(20, kind, "loss", "loss", "it rose", 20, "") for kind in kinds]
    with style("light"):
        figure = draw_monitor(table(np.linspace(1, 30, 40)), messages)
    marks = {line.get_label(): line.get_zorder() for line in figure.axes[0].lines}
    alarm = marks.pop("alarm")
    assert all(alarm > order for order in marks.values())
    for axis in figure.axes:
        dashed = [line for line in axis.lines if line.get_linestyle() == "--"]
        assert {tuple(line.get_xdata()) for line in dashed} == {(20, 20)}
        assert len(dashed) == 2  # the alarm and the change that was not judged


@pytest.mark.parametrize("last", [0.5 + 1e-6, 40.0])
def test_ticks_are_plain_and_apart(last: float) -> None:
    """Norms that are clipped to 0.5 look the same, not like noise of eight digits."""
    figure = drawn(np.linspace(0.5, last, 40))
    for number in (1, 2):
        shown = [label for label in labels(figure, number) if label]
        assert len(shown) >= 2
        assert all(len(label) <= 4 and "times" not in label for label in shown)
        assert len(set(shown)) == len(shown)
    low, high = figure.axes[1].get_ylim()
    assert low < 0.45
    assert high > 0.55

"""The data, the correlations and the errors, for both data sets."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.figures import panels
from joma.experiments.joma_paper.fig2 import DATA, Fig2

CAPTION = "A row for each data set: the data, the correlations, the relative errors."
"""What the figure shows, for those who cannot see it."""

CORRELATIONS = {
    "correlation": r"Eq. 18: prediction $\hat z$",
    "correlation_1": r"its part $\hat z_1$",
    "correlation_2": r"its part $\hat z_2$",
}
ERRORS = {
    "error": r"Eq. 18: $\hat z$, $\bar b$ of the start",
    "error_moving": r"Eq. 17: $\bar b$ as it moves",
    "error_still": "no prediction: $z(0)$",
    "error_integral": r"integral identity, summed step by step: $O(\eta)$",
}


def draw(settings: Fig2, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure, axes = panels(2, 3, width=4.2, height=3.1)
    figure.set_layout_engine("constrained", wspace=0.04)
    for row, data in zip(axes, DATA, strict=True):
        _draw_data(row[0], tables["frequencies"].query("data == @data"), data)
        curves = tables["curves"].query("data == @data")
        _draw_curves(row[1], curves, CORRELATIONS)
        row[1].set(ylim=(-1.2, 1.08), ylabel="normalised correlation with $z$", xlabel="gradient steps")
        row[1].set_title(f"{data} classes: what the paper shows")
        _draw_curves(row[2], curves, ERRORS)
        row[2].set(yscale="log", ylim=(1e-7, 30), ylabel=r"$|z-\hat z|\,/\,|z|$", xlabel="gradient steps")
        row[2].set_title(f"{data} classes: what a correlation hides")
        for axis in row[1:]:
            axis.legend(loc="lower right", fontsize=8)
    figure.suptitle(f"Median (line) and range (band) of {tables['curves']['run'].nunique()} seeds")
    return figure


def _draw_data(ax: Axes, table: pd.DataFrame, data: str) -> None:
    grid = table.pivot_table(index="token", columns="class", values="value").to_numpy()
    image = ax.imshow(grid, aspect="auto", cmap="viridis", origin="upper")
    ax.grid(visible=False)
    ax.locator_params(integer=True)
    ax.set(xlabel="class", ylabel="contextual token", title=f"{data} classes: $P(l\\,|\\,y)$")
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)


def _draw_curves(ax: Axes, curves: pd.DataFrame, names: Mapping[str, str]) -> None:
    for name, label in names.items():
        values = curves[curves["metric"] == name].pivot_table(index="step", columns="run", values="value")
        steps = values.index.to_numpy()
        (line,) = ax.plot(steps, values.median(axis=1).to_numpy(), label=label)
        ax.fill_between(
            steps, values.min(axis=1), values.max(axis=1), color=line.get_color(), alpha=0.2, lw=0
        )

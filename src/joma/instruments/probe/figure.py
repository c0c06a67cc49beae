"""The figure of a probed model: heat maps of layer and head, entropy by position, profiles over layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter
from numpy.typing import NDArray

from joma.core.figures import PALETTE, ink, panels, shade
from joma.instruments.probe import ProbeSettings
from joma.instruments.probe.adapter import draw_adapter
from joma.instruments.probe.sections.index_rows import index_rows
from joma.measures.attention.statistics import ATTENTION_ENTROPY

CAPTION = "Heat maps of layer and head, entropy by position, profiles over layers."
"""What the figure shows, for those who cannot see it."""

_LINES_SHOWN = 6
_PANELS_IN_A_ROW = 3
_TICKS = 12
_SAME = 0.005
"""Share of the values within which their differences are not shown: no colour stands for rounding."""
_VISIBLE = 0.15
"""Share of a colour scale that the values must span, for their differences to be seen."""


def draw(settings: ProbeSettings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    if settings.adapter:
        return draw_adapter(tables)
    drawings: list[Callable[[Axes], None]] = []
    if "attention" in tables:
        attention = tables["attention"]
        drawings += [
            lambda axes: _heat_map(axes, attention, ATTENTION_ENTROPY, "attention entropy (nats)"),
            lambda axes: _heat_map(axes, attention, "first_key_mass", "mass on the first key", top=1.0),
            lambda axes: _by_position(axes, tables["positions"]),
        ]
    if "ranks" in tables:
        drawings.append(lambda axes: _rank_profile(axes, tables["ranks"]))
    if "coherence" in tables:
        drawings.append(lambda axes: _coherence_profile(axes, tables["coherence"]))
    if "joint_dynamics" in tables:
        drawings.append(lambda axes: _joint_dynamics(axes, tables["joint_dynamics"]))
    if "received_attention" in tables:
        received = tables["received_attention"]
        drawings += [
            lambda axes: _heat_map(axes, received, "hitter_share", "keys with 90 % of the mass", 1.0),
            lambda axes: _heat_map(axes, received, "first_key_share", "mass received by the first key", 1.0),
        ]
    if not drawings:
        drawings.append(lambda axes: _write_nothing(axes, "the sections asked for have tables only"))
    columns = min(_PANELS_IN_A_ROW, len(drawings))
    rows = -(-len(drawings) // columns)
    figure, axes = panels(rows, columns, width=4.6, height=3.7)
    for place, drawing in zip(axes.flat, drawings, strict=False):
        drawing(place)
    for unused in axes.flat[len(drawings) :]:
        unused.set_visible(False)
    return figure


def _heat_map(axes: Axes, table: pd.DataFrame, metric: str, title: str, top: float | None = None) -> None:
    rows = table[table["metric"] == metric]
    axes.set_title(title)
    if rows.empty:
        _write_nothing(axes, f"{metric} was not measured")
        return
    grid = rows.assign(row=_attention_names(rows)).pivot_table(
        index="row", columns="head", values="value", sort=False
    )
    _image(axes, grid, "viridis", 0.0, top)


def _image(axes: Axes, grid: pd.DataFrame, colours: str, low: float | None, high: float | None) -> None:
    values = grid.to_numpy(float)
    low, high = _limits(values, low, high)
    image = axes.imshow(values, aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    step = max(1, -(-len(grid.index) // _TICKS))
    axes.set_yticks(range(0, len(grid.index), step), [str(row) for row in grid.index[::step]])
    step = max(1, -(-len(grid.columns) // _TICKS))
    axes.set_xticks(range(0, len(grid.columns), step), [str(head) for head in grid.columns[::step]])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")


def _limits(
    values: NDArray[np.float64], low: float | None, high: float | None
) -> tuple[float | None, float | None]:
    """The wished limits, or the data's own where the colours would show no difference within these."""
    known = values[np.isfinite(values)]
    if low is None or not known.size:
        return low, high
    top = known.max() if high is None else high
    if known.max() - known.min() < _SAME * np.abs(known).max():
        return low, top
    if known.max() - known.min() >= _VISIBLE * (top - low):
        return low, high
    if low < 0:
        widest = float(np.abs(known).max())
        return (-widest, widest) if widest > 0 else (low, high)
    return float(known.min()), float(known.max())


def _attention_names(rows: pd.DataFrame) -> pd.Series:
    """What each row's attention is called: its layer's number alone, where that tells them apart."""
    places = rows[["layer", "module", "call"]].drop_duplicates()
    if places["layer"].is_unique:
        return rows["layer"].astype(str)
    if places["module"].is_unique:
        return rows["module"].map(_short)
    return rows["module"].map(_short) + " " + rows["call"].astype(str)


def _short(module: str) -> str:
    idle = ("model", "transformer", "layer", "layers", "block")
    return ".".join(part for part in module.split(".") if part not in idle)[-24:]


def _by_position(axes: Axes, table: pd.DataFrame) -> None:
    rows = table[table["metric"] == ATTENTION_ENTROPY]
    axes.set_title("entropy by position, mean over heads")
    if rows.empty:
        _write_nothing(axes, "entropy was not measured")
        return
    rows = rows.assign(row=_attention_names(rows), seen=(rows["position"] + rows["position_end"] + 1) / 2)
    layers = list(rows["row"].unique())[:: max(1, -(-rows["row"].nunique() // _LINES_SHOWN))]
    for number, layer in enumerate(layers):
        mean = rows[rows["row"] == layer].groupby("seen")["value"].mean()
        axes.plot(mean.index, mean, color=shade(number, len(layers)), label=f"layer {layer}")
    seen = np.sort(rows["seen"].unique())
    axes.plot(seen, np.log(seen), color=ink(), lw=1, ls=":", label="uniform over keys seen")
    axes.set_xscale("log")
    axes.set_xlabel("position (keys seen)")
    axes.set_ylabel("nats")
    axes.legend(loc="upper left")


def _rank_profile(axes: Axes, table: pd.DataFrame) -> None:
    rows = table[(table["metric"] == "stable_rank") & table["layer"].notna()]
    axes.set_title("stable rank by layer")
    several = rows["stack"].nunique() > 1
    for number, ((stack, matrix), own) in enumerate(rows.groupby(["stack", "matrix"], sort=False)):
        mean = own.groupby("layer")["value"].mean()
        label = f"{stack} {matrix}" if several else str(matrix)
        layers = mean.index.to_numpy(float)
        axes.plot(layers, mean, "o-", ms=3, color=PALETTE[number % len(PALETTE)], label=label)
    axes.set_yscale("log")
    _plain_numbers(axes)
    _whole_layers(axes)
    axes.set_xlabel("layer")
    axes.set_ylabel("|W|$_F^2$ / $\\sigma_1^2$")
    axes.legend()


def _coherence_profile(axes: Axes, table: pd.DataFrame) -> None:
    axes.set_title("cosines of representations, by layer")
    rows = table[(table["metric"] == "mean_absolute_cosine") & (table["place"] == "input")]
    within = rows[(rows["other_layer"] == rows["layer"]) & (rows["pairs"] == "different")]
    between = rows[(rows["other_layer"] == rows["layer"] - 1) & (rows["pairs"] == "same_row")]
    several = rows["stack"].nunique() > 1
    number = 0
    for stack in rows["stack"].unique():
        for own, words in (
            (within[~within["centred"]], "distinct tokens"),
            (within[within["centred"]], "distinct tokens, mean removed"),
            (between[~between["centred"]], "same token, layer before"),
        ):
            own = own[own["stack"] == stack].sort_values("layer")
            label = f"{stack}: {words}" if several else words
            colour = PALETTE[number % len(PALETTE)]
            axes.plot(own["layer"].to_numpy(float), own["value"], "o-", ms=3, color=colour, label=label)
            number += 1
    if len(within):
        axes.axhline(within["random"].iloc[0], color=ink(), lw=1, ls=":", label="random directions")
    axes.set_ylim(0, 1.03)
    _whole_layers(axes)
    axes.set_xlabel("layer (its input)")
    axes.set_ylabel("mean |cos|")
    axes.legend(fontsize=7.5, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def _joint_dynamics(axes: Axes, table: pd.DataFrame) -> None:
    axes.set_title("joint-dynamics index (1: Theorem 1)")
    rows = index_rows(table).dropna(subset="head")
    if rows.empty:
        _write_nothing(axes, "no head has enough keys")
        return
    several = rows["stack"].nunique() > 1
    names = rows["stack"] + " " + rows["layer"].astype(str) if several else rows["layer"].astype(str)
    grid = rows.assign(row=names).pivot_table(index="row", columns="head", values="value", sort=False)
    _image(axes, grid, "RdBu_r", -1.0, 1.0)


def _whole_layers(axes: Axes) -> None:
    """Layers have whole numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _plain_numbers(axes: Axes) -> None:
    """20, 50, 100 on a logarithmic axis that spans little more than a decade."""
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _write_nothing(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()

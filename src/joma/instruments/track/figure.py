"""Curves over the steps, layer by layer, and the same as a map of layer and step."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.instruments.track import TrackRun
from joma.reporting.figures import ink, panels

_TITLES = {
    ("entropy", "attention"): "attention entropy (nats)",
    ("stable_rank", "lower"): "stable rank, lower MLP",
    ("stable_rank", "query_key"): "stable rank, queries times keys",
    ("change_norm", "lower"): "|W(t) - W(t')|, lower MLP, neighbours",
}
_LEGEND_LINES = 8


def draw(settings: TrackRun, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Left: every head or matrix over the steps, by layer, dips marked. Right: a map of layer and step."""
    values = tables["values"]
    values = values[(values["series"] == "A") & (values["against"].isin(["", "previous"]))]
    shown = [
        (title, rows)
        for (metric, matrix), title in _TITLES.items()
        if len(rows := values[(values["metric"] == metric) & (values["matrix"] == matrix)])
    ]
    figure: Figure
    figure, axes = panels(max(1, len(shown)), 2, width=5.4, height=3.2)
    dips = tables["bounces"]
    dips = dips[(dips["series"] == "A") & (dips["verdict"] == "bounces")]
    if not shown:
        for place in axes.flat:
            place.set_axis_off()
    for (left, right), (title, rows) in zip(axes, shown, strict=False):
        key = (rows["metric"].iloc[0], rows["matrix"].iloc[0])
        own = dips[(dips["metric"] == key[0]) & (dips["matrix"] == key[1])]
        _curves(left, rows, own)
        left.set_title(title)
        _map(right, rows)
        right.set_title(f"{title}, mean of a layer")
    if "loss" in set(values["metric"]):
        loss = values[values["metric"] == "loss"].sort_values("step")
        twin = axes[0][0].twinx()
        twin.plot(_shifted(loss["step"]), loss["value"], color=ink(), ls=":", lw=1.2)
        twin.set_ylabel("loss (nats, dotted)")
        twin.grid(False)
    return figure


def _curves(axes: Axes, rows: pd.DataFrame, dips: pd.DataFrame) -> None:
    layers = sorted(rows["layer"].dropna().unique())
    colour = {
        layer: mpl.colormaps["viridis"](0.05 + 0.85 * number / max(1, len(layers) - 1))
        for number, layer in enumerate(layers)
    }
    step = max(1, -(-len(layers) // _LEGEND_LINES))
    named = set(layers[::step])
    key = ["line", "stack", "layer", "expert", "head"]
    for keys, one in rows.groupby(key, sort=False, dropna=False):
        layer = keys[2]
        if pd.isna(layer):
            continue
        one = one.sort_values("step")
        label = f"layer {layer}" if layer in named else None
        named.discard(layer)
        axes.plot(_shifted(one["step"]), one["value"], "-", lw=1.0, color=colour[layer], label=label)
        if len(one) == 1:
            axes.plot(_shifted(one["step"]), one["value"], "o", color=colour[layer])
    for layer, date, value in zip(dips["layer"], dips["dip_step"], _at_dips(rows, dips), strict=True):
        if not pd.isna(layer):
            axes.plot(date + 1, value, "v", color=colour[layer], mec=ink(), ms=5, zorder=5)
    axes.set_xscale("log")
    axes.set_xlabel("step + 1 (log; ▾: a dip beyond its null)")
    axes.legend(fontsize=7, ncols=2)


def _at_dips(rows: pd.DataFrame, dips: pd.DataFrame) -> list[float]:
    found = []
    for _, dip in dips.iterrows():
        own = rows[(rows["layer"] == dip["layer"]) & (rows["step"] == dip["dip_step"])]
        if not pd.isna(dip["head"]):
            own = own[own["head"] == dip["head"]]
        found.append(float(own["value"].mean()))
    return found


def _map(axes: Axes, rows: pd.DataFrame) -> None:
    line = rows["line"].iloc[0]
    grid = rows[rows["line"] == line].pivot_table(index="layer", columns="step", values="value")
    # Each layer in units of its own mean, so that the course shows beside the differences of layers.
    relative = grid.div(grid.mean(axis=1).abs().clip(lower=1e-300), axis=0)
    image = axes.imshow(relative.to_numpy(float), aspect="auto", origin="lower", interpolation="nearest")
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, label="over the layer's mean")
    ticks = np.unique(np.linspace(0, len(grid.columns) - 1, 7).astype(int))
    axes.set_xticks(ticks, [str(grid.columns[tick]) for tick in ticks])
    ticks = np.unique(np.linspace(0, len(grid.index) - 1, 8).astype(int))
    axes.set_yticks(ticks, [str(grid.index[tick]) for tick in ticks])
    axes.set_xlabel(f"step (as measured){f', {line}' if line else ''}")
    axes.set_ylabel("layer")


def _shifted(steps: pd.Series) -> pd.Series:
    return steps + 1


def printed(settings: TrackRun, tables: Mapping[str, pd.DataFrame]) -> str:
    """One line per checkpoint, the dips, and everything that was noticed."""
    members, notes, found = tables["checkpoints"], tables["notes"], tables["bounces"]
    words = [members[["checkpoint", "step", "bytes", "same_as", "measured"]].to_string(index=False)]
    dips = found[found["verdict"] == "bounces"]
    if len(dips):
        shown = [
            "line",
            "layer",
            "head",
            "matrix",
            "metric",
            "dip_step",
            "dip_from",
            "dip_to",
            "rebound_step",
        ]
        shown = [name for name in shown if dips[name].astype(str).ne("").any()]
        words.append(dips[[*shown, "dip_probability", "rebound_probability"]].head(40).to_string(index=False))
    for heading, kept in (("not measured", notes[notes["lost"]]), ("noticed", notes[~notes["lost"]])):
        if len(kept):
            words.append(
                "\n".join(
                    [
                        f"{heading}:",
                        *(f"  {kind}: {text}" for kind, text in zip(kept["kind"], kept["text"], strict=True)),
                    ]
                )
            )
    return "\n\n".join(words)

"""The gain over time and over both rates, Theorem 3's error, the hypothesis of Theorem 4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_phases import SnapPhases

CAPTION = "B(t); B at the end over both rates; Theorem 3's error; the hypothesis of Theorem 4."
"""What the figure shows, for those who cannot see it."""


def draw(settings: SnapPhases, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure, axes = panels(2, 2, width=4.8, height=3.6)
    _draw_gain(axes[0, 0], tables["gain"], tables["phases"])
    _draw_rates(axes[0, 1], tables["phases"])
    _draw_theorem_3(axes[1, 0], tables["laws"])
    _draw_hypothesis(axes[1, 1], tables["overlap"])
    return figure


def _draw_gain(axes: Axes, gain: pd.DataFrame, phases: pd.DataFrame) -> None:
    middle = sorted(gain["eta_y"].unique())[len(gain["eta_y"].unique()) // 2]
    curves = gain[(gain["metric"] == "gain") & (gain["eta_y"] == middle) & (gain["time"] > 0)]
    for colour, (z, run) in zip(PALETTE, curves.groupby("eta_z"), strict=False):
        axes.loglog(run["time"], run["value"], color=colour, label=f"$\\eta_Z$ = {z:g}")
    first = curves[curves["eta_z"] == curves["eta_z"].max()]
    early = first[first["value"] < 0.3 * first["value"].max()]
    law = early["value"].iloc[0] * (early["time"] / early["time"].iloc[0]) ** 2
    axes.loglog(early["time"], law, ":", color=ink(), linewidth=1.2, label="law $t^2$ of scanning")
    decoder = phases[(phases["metric"] == "decoder time") & (phases["eta_y"] == middle)]["value"].iloc[0]
    axes.axvline(decoder, color=ink(), linewidth=0.8, linestyle="--")
    axes.annotate(
        "decoder at\nhalf speed",
        (decoder, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8,
    )
    axes.set(
        xlabel="time $t$", ylabel="gain $B_n(t)$", title=f"Scanning, then snapping ($\\eta_Y$ = {middle:g})"
    )
    axes.set_ylim(1e-9, 10)
    axes.legend(loc="upper left")


def _draw_rates(axes: Axes, phases: pd.DataFrame) -> None:
    runs = phases.pivot_table(index=["eta_z", "eta_y"], columns="metric", values="value")
    for colour, (z, line) in zip(PALETTE, runs.groupby("eta_z"), strict=False):
        y = line.index.get_level_values("eta_y")
        gain = line["gain"] / line["gain"].iloc[0]
        axes.loglog(y, gain, "o-", color=colour, markersize=4, label=f"end, $\\eta_Z$ = {z:g}")
    early = line["early gain"] / line["early gain"].iloc[0]
    axes.loglog(y, early, "s--", color=ink(), markersize=4, label="early, all $\\eta_Z$")
    axes.set(
        xlabel="decoder's rate $\\eta_Y$",
        ylabel="gain, relative to the smallest $\\eta_Y$",
        title="A faster decoder: more gain early, not at the end",
    )
    axes.legend(loc="upper left")


def _draw_theorem_3(axes: Axes, laws: pd.DataFrame) -> None:
    errors = laws[laws["metric"] == "theorem 3, error"]
    shapes: dict[str, str] = {}
    for colour, (classes, sets) in zip(PALETTE, errors.groupby("next_tokens"), strict=False):
        for style, (weight, line) in zip(("o-", "s--", "^:"), sets.groupby("common_weight"), strict=False):
            axes.loglog(line["rate_ratio"], line["value"], style, color=colour, markersize=4)
            shapes[style] = f"common token's weight {weight:g}"
        axes.plot([], [], color=colour, label=f"K = {classes} next tokens")
    for style, label in shapes.items():
        axes.plot([], [], style, color=ink(), markersize=4, label=label)
    axes.axhline(1e-3, color=ink(), linewidth=0.8, linestyle="-.", label="0.001")
    axes.set(
        xlabel="$\\eta_Y/\\eta_Z$",
        ylabel="largest $|r/(r_0\\chi) - 1|$",
        title="Theorem 3 as $\\eta_Y/\\eta_Z$ grows",
    )
    axes.legend(loc="lower left", fontsize=8, handlelength=2.8)


def _draw_hypothesis(axes: Axes, overlap: pd.DataFrame) -> None:
    weight = overlap["common_weight"].max()
    shown = overlap[overlap["common_weight"] == weight]
    for colour, (classes, sets) in zip(PALETTE, shown.groupby("next_tokens"), strict=False):
        for metric, style in (("ln overlap", "-"), ("ln overlap, law", "--")):
            line = sets[sets["metric"] == metric]
            label = f"K = {classes}" if style == "-" else None
            axes.plot(
                line["gain"], line["value"], style, color=ink() if style == "--" else colour, label=label
            )
    reach = shown["gain"].max()
    floor = 1.6 * shown["value"].min()
    b = np.linspace(0, min(reach, -floor / 4), 20)
    axes.plot(b, -4 * b, ":", color=ink(), label="hypothesis $e^{-4B}$")
    axes.plot([], [], "--", color=ink(), label="law from the state")
    axes.set(
        xlabel="gain $B_n$",
        ylabel="$\\ln\\ f_n\\cdot f_{n'}$, less its start",
        title=f"The gain lowers the overlap (common weight {weight:g})",
    )
    axes.legend(loc="lower right")

"""The phase diagram of the bounce, its law, and the four flows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.beyond.block_flow import BlockFlow

CAPTION = "Left: rebound over saliency and spread. Middle: law against flow. Right: entropy in time."
"""What the figure shows, for those who cannot see it."""


def draw(settings: BlockFlow, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 3, width=4.6, height=3.9)
    phase, law, courses = axes[0]
    phases = tables["phases"][tables["phases"]["spread"] < 1]
    grid = phases[phases["metric"] == "rebound"].pivot_table(
        index="spread", columns="saliency", values="value"
    )
    levels = [1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 1.0, 1.5]
    shown = phase.contourf(
        grid.columns,
        grid.index,
        np.maximum(grid.to_numpy(), 1e-5),
        levels=[1e-5, *levels, 2.4],
        cmap="viridis",
        norm="log",
    )
    lines = phase.contour(
        grid.columns, grid.index, grid.to_numpy(), levels=levels, colors="white", linewidths=0.7
    )
    phase.clabel(lines, fmt="%g", fontsize=8)
    bounds = phases[phases["metric"] == "boundary"]
    if len(bounds):
        # With the paper's own C those bounce whose |rho_-| is larger (Gaussian data).
        least = np.sqrt(bounds.pivot_table(index="spread", columns="saliency", values="value"))
        dashed = phase.contour(
            least.columns,
            least.index,
            least.to_numpy(),
            levels=6,
            colors="black",
            linestyles="--",
            linewidths=0.8,
        )
        phase.clabel(dashed, fmt="|ρ₋| > %.2g", fontsize=7)
    figure.colorbar(shown, ax=phase, label="rebound, nats")
    phase.set(xscale="log", xlabel="saliency √κ·max μ", ylabel="spread min μ / max μ")
    phase.set_title(f"C = I: every block bounces; how deep ({settings.components} components)")
    wide = tables["law"].pivot_table(index=["draw", "metric"], columns="run", values="value").reset_index()
    for k, (metric, one) in enumerate(wide.groupby("metric")):
        law.plot(one["flow"], one["law"], "o", ms=4, alpha=0.6, color=PALETTE[k], label=metric)
    law.plot([1e-4, 4], [1e-4, 4], color=ink(), lw=1, label="equal")
    law.set(xscale="log", yscale="log", xlabel="the flow, nats", ylabel="the closed form, nats")
    law.set(xlim=(1e-4, 4), ylim=(1e-4, 4))
    law.set_title(f"{settings.drawn} random μ")
    law.legend()
    table = tables["courses"]
    for k, (name, one) in enumerate(table[table["metric"] == "entropy"].groupby("run", sort=False)):
        style = "--" if name == "corrected law" else "-"
        courses.plot(one["step"], one["value"], style, color=PALETTE[k], label=name)
    courses.set(xscale="log", xlabel="time, 1/η_w", ylabel="entropy of softmax(z), nats")
    courses.set_title("the block follows the corrected flow")
    courses.legend()
    return figure

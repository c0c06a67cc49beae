"""The paper's picture, and the mass on common and on distinct tokens over all seeds."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.scan_snap.snap_fig4 import SnapFig4

CAPTION = "Left, the paper's picture (its seed); right, the mass on common and on distinct tokens."
"""What the figure shows, for those who cannot see it."""

PICTURED = (0, 2, 4, 6, 8, 10, 48)
"""Steps that the paper's picture shows; the one it calls final is step 48 of 100."""


def draw(settings: SnapFig4, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    mass = tables["tokens"].query("metric == 'attention mass' and length < inf and data == 'real'")
    runs = mass["run"].unique()
    shown = 2 if 2 in runs else int(runs.min())
    first = mass[(mass["run"] == shown) & (mass["next_token"] == mass["next_token"].min())]
    picture = first[first["step"].isin({*PICTURED, mass["step"].max()})]
    grid = picture.pivot(index="step", columns="token", values="value")
    figure, axes = panels(1, 2, width=5.6, height=3.9)
    figure.set_layout_engine("constrained", wspace=0.06)
    left, right = axes[0]
    image = left.imshow(grid.to_numpy(), aspect="auto", cmap="viridis", interpolation="nearest")
    commons = int((picture.drop_duplicates("token")["kind"] == "common").sum())
    left.axvline(commons - 0.5, color="white", linestyle="--", linewidth=1.2)
    # A gap wherever the rows skip more steps than above it: they are not evenly spaced.
    skipped = grid.index.to_numpy()[1:] - grid.index.to_numpy()[:-1]
    for row in (skipped > skipped.min()).nonzero()[0]:
        left.axhline(row + 0.5, color=left.get_facecolor(), linewidth=3)
    left.set_yticks(range(len(grid)), [f"step {step}" for step in grid.index])
    distinct = grid.shape[1] - commons
    left.set_xticks(range(grid.shape[1]), [*range(1, commons + 1), *range(1, distinct + 1)], fontsize=7.5)
    middles = [commons / 2 - 0.5, commons + distinct / 2 - 0.5]
    left.set_xticks(middles, ["common tokens", "distinct tokens, rarest first"], minor=True)
    left.tick_params(axis="x", which="minor", length=0, pad=16)
    left.grid(False)
    whose = ", the paper's" if shown == 2 else ""
    left.set_title(rf"$c_n$ of the first class (seed {shown}{whose})")
    figure.colorbar(image, ax=left, label="attention mass of a token", pad=0.02)

    total = mass.groupby(["kind", "run", "next_token", "step"])["value"].sum().reset_index()
    for colour, (kind, part) in zip((PALETTE[1], PALETTE[0]), total.groupby("kind"), strict=True):
        course = part.groupby("step")["value"].agg(["mean", "min", "max"])
        right.plot(course.index, course["mean"], color=colour, label=f"{kind} tokens, together")
        right.fill_between(course.index, course["min"], course["max"], color=colour, alpha=0.2, lw=0)
    top = mass[mass["kind"] == "distinct"]
    top = top[top["probability"] == top["probability"].max()]
    course = top.groupby("step")["value"].agg(["mean", "min", "max"])
    right.plot(course["mean"], color=ink(), linestyle=":", label="the strongest distinct token")
    right.fill_between(course.index, course["min"], course["max"], color=ink(), alpha=0.15, lw=0)
    right.set_ylim(0, 1)
    right.set_xlabel("step")
    right.set_ylabel("attention mass")
    right.set_title(f"all classes, {len(runs)} seeds (mean and range)")
    right.legend(loc="upper right")
    return figure

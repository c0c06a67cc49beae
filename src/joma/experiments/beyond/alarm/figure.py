"""Loss, entropies and evidence of made faults, and what each rule was worth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.beyond.alarm import Alarm
from joma.experiments.beyond.alarm.branches import CONTINUE, MAIN
from joma.experiments.beyond.alarm.detection import OURS, WHOLE
from joma.experiments.beyond.alarm.rules import KURTOSIS, LOSS_CUSUM

CAPTION = (
    "Top: loss, and normalised entropy of every head, of the first base in four faults, its alarms "
    "marked. Bottom: of each rule, the share of bases with an alarm, branch by branch, looks at every "
    "step."
)
"""What the figure shows, for those who cannot see it."""

SHOWN = ("attention ramp 15", "rate ramp 20", "rate jump", "mlp ramp 20")
_BEFORE = 60
_RULES = (
    OURS,
    WHOLE,
    LOSS_CUSUM,
    "gradient norm 6 sigma",
    KURTOSIS,
    "largest logit 100",
    "entropy floor, calibrated",
    "residual rms, calibrated",
)


def draw(settings: Alarm, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(3, len(SHOWN), width=3.6, height=2.9)
    series, alarms = tables["series"], tables["alarms"]
    one = series[(series["setting"] == MAIN.name) & (series["side"] == "judged")]
    one = one[one["base"] == one["base"].min()]
    heads = [name for name in one if name.startswith("normalised_entropy")]
    base = one[one["branch"] == "base"].tail(_BEFORE)
    start = int(base["step"].iloc[-1]) + 1
    said = alarms[
        (alarms["setting"] == MAIN.name) & (alarms["cadence"] == 1) & (alarms["base"] == one["base"].min())
    ]
    for number, branch in enumerate(SHOWN):
        run = pd.concat([base, one[one["branch"] == branch]])
        twin = pd.concat([base, one[one["branch"] == CONTINUE.name]])
        twin = twin[twin["step"] <= run["step"].max()]
        loss, entropy = axes[0, number], axes[1, number]
        loss.plot(twin["step"] - start, twin["loss"], color=ink(), lw=0.8, alpha=0.5, label="twin")
        loss.plot(run["step"] - start, run["loss"], color=PALETTE[0], lw=1, label="loss (nats)")
        worst = float(np.nanquantile(run["loss"], 0.9))
        loss.set(title=branch, ylim=(float(run["loss"].min()) - 0.1, worst + 0.4))
        for head in heads:
            entropy.plot(run["step"] - start, run[head], lw=0.7, color=PALETTE[2], alpha=0.7)
        entropy.set(ylim=(0, 1), xlabel="steps after the fault began")
        own = said[said["branch"] == branch].set_index("rule")["step"]
        for rule, colour, style in ((OURS, PALETTE[1], "-"), (LOSS_CUSUM, ink(), ":")):
            for axis in (loss, entropy):
                if np.isfinite(own.get(rule, np.nan)):
                    axis.axvline(own[rule], color=colour, ls=style, lw=1.4, label=f"alarm: {rule}")
    axes[0, 0].set_ylabel("loss (nats)")
    axes[1, 0].set_ylabel("attention entropy / log n, heads")
    axes[0, 0].legend(loc="upper left", fontsize="x-small")
    _matrix(figure, axes[2], tables["rates"])
    return figure


def _matrix(figure: Figure, axes: np.ndarray, rates: pd.DataFrame) -> None:
    """Share of bases with an alarm: rules down, branches across."""
    grid = axes[0].get_gridspec()
    for axis in axes:
        axis.remove()
    axis = figure.add_subplot(grid[2, :])
    own = rates[(rates["setting"] == MAIN.name) & (rates["cadence"] == 1) & (rates["metric"] == "alarmed")]
    counts = own.groupby(["rule", "branch"], sort=False)[["count", "of"]].sum()
    share = (counts["count"] / counts["of"]).unstack("branch").loc[list(_RULES)]
    axis.imshow(share, aspect="auto", cmap="Greys", vmin=0, vmax=1.4)
    axis.set_xticks(range(share.shape[1]), share.columns, rotation=25, ha="right")
    axis.set_yticks(range(share.shape[0]), share.index)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    for row, rule in enumerate(share.index):
        for column, branch in enumerate(share.columns):
            value = share.loc[rule, branch]
            axis.text(
                column,
                row,
                f"{value:.0%}",
                ha="center",
                va="center",
                fontsize="x-small",
                color="white" if value > 0.6 else "black",
            )
    axis.set_title("share of bases with an alarm, looks at every step")

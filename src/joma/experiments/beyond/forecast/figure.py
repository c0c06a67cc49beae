"""Attention as trained and as forecast, and the error of each closure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.beyond.forecast import CLOSURES, DATA, EXACT, Forecast
from joma.experiments.beyond.forecast.claims import select

CAPTION = "Top: mean attention of four tokens, trained and forecast. Bottom: the error of each closure."
"""What the figure shows, for those who cannot see it."""

NAMES = {
    "exact": "Theorem 1",
    "signed": "softmax: Eq. 18",
    "corrected": "softmax: Eq. 18 corrected",
    "moving": "softmax: corrected, moving mean",
}


# A closure looks alike in every panel; Eq. 18 corrected lies upon Eq. 18.
LOOKS: dict[str, dict[str, str | tuple[int, tuple[int, int]]]] = {
    "signed": {"color": PALETTE[0], "ls": "-"},
    "corrected": {"color": PALETTE[1], "ls": (0, (4, 4))},
    "moving": {"color": PALETTE[2], "ls": "-"},
    "linear": {"color": PALETTE[3], "ls": ":"},
    "exp": {"color": PALETTE[4], "ls": "-."},
}


def draw(settings: Forecast, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(2, 2, width=5.4, height=3.6, sharex=True)
    curves = tables["curves"]
    for axis, data in zip(axes[0], DATA, strict=True):
        courses = tables["courses"].query("data == @data and attention == 'softmax'")
        for k, token in enumerate(_most_moved(courses)):
            one = courses[courses["token"] == token]
            trained = one[one["metric"] == "trained"]
            marker = {"marker": "osD^"[k], "markevery": (3 * k, 13)}
            grey = {"marker": marker["marker"], "ms": 9, "markevery": [-1]}
            axis.plot(trained["step"], trained["value"], color=ink(), lw=5, alpha=0.3, **grey)
            for closure in ("signed", "moving"):
                cast = one[(one["metric"] == "forecast") & (one["closure"] == closure)]
                axis.plot(cast["step"], cast["value"], ms=5, lw=1.3, **LOOKS[closure], **marker)
            axis.plot([], [], color=ink(), ls="", label=f"token {token}", **marker)
        axis.set(ylabel="mean attention to a token")
        axis.set_title(
            f"softmax attention, {data} classes:\nthe four tokens that move most, seed {settings.seed}"
        )
        axis.legend(loc="upper left")
    shown = {}
    for axis, data in zip(axes[1], DATA, strict=True):
        lines = [("softmax", closure) for closure in CLOSURES] + [(kind, "exact") for kind in EXACT]
        for attention, closure in lines:
            chosen = select(curves, data, attention, closure, "logit_error")
            curve = chosen.groupby("step")["value"].median()
            curve = shown[data, attention, closure] = curve[curve > 0]
            softmax = attention == "softmax"
            name = NAMES[closure] if softmax else f"{attention}: {NAMES[closure]}, exact"
            axis.plot(curve, **LOOKS[closure if softmax else attention], label=name)
        axis.set(xlabel="training time (unit: 1/learning rate)", ylabel="relative error of the logits")
        axis.set(
            yscale="log",
            title=f"|forecast − trained| / |moved|, {data} classes,\n"
            f"median of {curves['run'].nunique()} seeds",
        )
    least = min(curve.min() for curve in shown.values() if len(curve))
    for axis in axes[1]:
        axis.set_ylim(bottom=10.0 ** np.floor(np.log10(least)))
    handles, labels = axes[1, 0].get_legend_handles_labels()
    trained_line = axes[0, 0].plot([], [], color=ink(), lw=5, alpha=0.3)
    names = ["trained (top panels)", *labels]
    figure.legend([*trained_line, *handles], names, loc="outside lower center", ncols=3)
    return figure


def _most_moved(courses: pd.DataFrame, count: int = 4) -> list[int]:
    """The tokens whose trained attention moved most: ever up or down."""
    trained = courses[courses["metric"] == "trained"]
    span = trained.groupby("token")["value"].agg(lambda v: v.max() - v.min())
    return sorted(int(token) for token in span.nlargest(count).index)

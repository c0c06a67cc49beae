"""What each model keeps, and the cosines of its embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, panels
from joma.experiments.beyond.embeddings import LAWS, MODELS, Embeddings

CAPTION = "What each model keeps under exp attention, and what its embeddings learn."
"""What the figure shows, for those who cannot see it."""

# As the figure has it: a model's logits, and a law's constant for exp attention.
TITLES = {
    "free": "z free (Theorem 1's case)",
    "one matrix": r"$z = U^\top A\,u_q$",
    "two matrices": r"$z = U^\top W_K^\top W_Q\,u_q$",
    "free, embeddings learn": "z free, embeddings learn",
    "two matrices, embeddings learn": r"$z = U^\top W_K^\top W_Q\,u_q$, embeddings learn",
}
READERS = (
    r"$\, -\, W_K^\top W_K - W_Q^\top W_Q$"  # which the block law has too where there are these matrices
)


def draw(settings: Embeddings, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure, axes = panels(2, 3, width=4.4, height=3.3)
    drift = tables["drift"].query("attention == 'exp' and scale == @settings.scale")
    colours = dict(zip(LAWS, PALETTE, strict=False))
    for axis, (model, title) in zip(axes.ravel(), TITLES.items(), strict=False):
        for law, name in LAWS.items():
            one = drift[(drift["model"] == model) & (drift["metric"] == law) & (drift["step"] > 0)]
            if one.empty:
                continue
            curve = one.groupby("step")["value"].median().clip(lower=1e-14)
            name += READERS if law == "block" and MODELS[model][0] == "factors" else ""
            dash = "--" if law == "block" else "-"  # it lies upon others
            axis.plot(curve, dash, color=colours[law], label=name)
        axis.set(yscale="log", ylim=(1e-14, 1e2), title=title)
        axis.set(xlabel="training time", ylabel="drift / what the terms moved")
        axis.legend(loc="center", bbox_to_anchor=(0.5, 0.62))
    last = axes[1, 2]
    course = tables["course"].query("attention == 'exp' and model == 'free, embeddings learn'")
    for metric, name in {"synonyms": "synonyms", "unrelated": "unrelated tokens"}.items():
        last.plot(course[course["metric"] == metric].groupby("step")["value"].median(), label=name)
    last.set(xlabel="training time", ylabel="mean cosine of embeddings", title="z free, embeddings learn")
    last.legend(loc="upper left")
    figure.suptitle(f"exp attention, median of {drift['run'].nunique()} seeds")
    return figure

"""Drift and coherence against the dimension, and the dimension that is needed."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from joma.core.figures import PALETTE, ink, panels
from joma.experiments.joma_paper.almost_orthogonal import AlmostOrthogonal
from joma.experiments.joma_paper.almost_orthogonal.claims import _rms

CAPTION = "Drift against the dimension, coherence against the dimension, dimension against epsilon."
"""What the figure shows, for those who cannot see it."""

NAMES = {
    "drift": "one token's invariant",
    "first_order_rest": "with the first-order term",
    "survivor": "sum over all tokens",
    "typical": "prediction |v||v| / (2 sqrt d)",
}


def draw(settings: AlmostOrthogonal, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the figure that ``CAPTION`` describes."""
    figure: Figure
    figure, axes = panels(1, 3, width=4.6, height=3.7)
    left, middle, right = axes[0]
    for (metric, name), colour in zip(NAMES.items(), (*PALETTE[:3], ink()), strict=True):
        curve = _rms(tables["drift"], "exp", metric)
        style = ":" if metric == "typical" else "-"
        left.plot(curve.index, curve, color=colour, label=name, ls=style, marker="" if style == ":" else "o")
    left.axvline(settings.tokens, color=ink(), lw=0.8, alpha=0.6)
    left.annotate(
        "d = M",
        (settings.tokens, 0.95),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
    )
    left.set(
        xscale="log",
        yscale="log",
        ylim=(1e-14, 1e4),
        xlabel="embedding dimension d",
        ylabel="drift, relative to Σv²/2",
        title=f"Theorem 1's invariants, exp, M = {settings.tokens}",
    )
    left.legend(loc="center", bbox_to_anchor=(0.5, 0.45))
    table = tables["coherence"]
    for metric, name, style in (
        ("predicted", "law of the cosine", "-"),
        ("measured", "random embeddings", "o"),
        ("welch", "Welch bound", "--"),
    ):
        curve = table[(table["metric"] == metric) & (table["value"] > 0)].groupby("dimension")["value"]
        middle.plot(curve.median().index, curve.median(), style, label=name)
    middle.set(
        xscale="log",
        yscale="log",
        xlabel="embedding dimension d",
        ylabel="coherence ε (largest |cos|)",
        title=f"coherence of M = {settings.vocabulary} embeddings",
    )
    middle.legend()
    largest = tables["dimensions"]["tokens"].max()
    table = tables["dimensions"].query("tokens == @largest")
    for metric, name, style in (
        ("lemma", "Johnson-Lindenstrauss lemma", "--"),
        ("printed", "printed, 8 ε⁻² log M", "-"),
        ("random", "random vectors, exact", "-"),
    ):
        curve = table[table["metric"] == metric]
        right.plot(curve["epsilon"], curve["value"], style, label=name)
    right.axhline(largest, color=ink(), lw=0.8, alpha=0.6)
    right.annotate(
        "d = M: orthonormal", (0.98, largest), xycoords=("axes fraction", "data"), ha="right", va="bottom"
    )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="coherence ε",
        ylabel="dimension needed",
        ylim=(50, 3 * largest),
        title=f"dimension for M = {largest} tokens",
    )
    right.set_xticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
    right.minorticks_off()
    right.legend(loc="lower left")
    return figure

"""Where the two theories are one, and where they are not."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, correct, judge, within
from joma.experiments.joma_paper.linear_agrees import JOMA, KEYS, NORMALISED, LinearAgrees


def claims(settings: LinearAgrees, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Where the two theories are one, and where they are not."""
    numbers = tables["agreement"].pivot_table(index=KEYS, columns=["run", "metric"], values="value")
    cells = len(numbers)
    nothing = tables["uninformative"].pivot_table(index=KEYS, columns="metric", values="value")
    null = nothing["entropy of distinct tokens, change"]
    source = "JoMA Sec. 1"

    def column(metric: str, *runs: str) -> pd.DataFrame:
        return numbers[[(run, metric) for run in runs]]

    difference = float(column("logits, difference to Y/Z", JOMA).to_numpy().max())
    moved = column("attention moved against the block", NORMALISED).to_numpy()
    sparser = column("entropy of distinct tokens, change", JOMA).to_numpy()
    whole = column("entropy, change", JOMA, NORMALISED).to_numpy()
    fates = column("common falls and distinct rise", JOMA, NORMALISED).mean()
    winner = column("strongest token gains most", JOMA, NORMALISED).to_numpy()
    return [
        correct(
            id="linear_agrees.coincide",
            source=source,
            printed="For linear activation, JoMA coincides with Scan&Snap.",
            right="It is Scan&Snap without the division by |c_n|, exactly; with that division attention "
            "goes elsewhere.",
            printed_error=float(moved.max()),
            error=difference,
            tolerance=1e-6,
            evidence=f"{cells} data sets and rates, softmax attention, cross-entropy. Right: largest "
            "difference of logits between the block and plain Y/Z. Printed: share of attention elsewhere "
            f"with the normalisation ({moved.min():.2g} to {moved.max():.2g})",
        ),
        judge(
            bool(sparser.max() < 0),
            id="linear_agrees.sparse",
            source=source,
            statement="For linear activation attention becomes sparse (entropy among distinct tokens).",
            expected="a negative change (nats) everywhere",
            measured=float(sparser.max()),
            tolerance=0.0,
            null=float(null.median()),
            null_description="same tokens, context that says nothing of the next token (median)",
            evidence=f"{cells} data sets and rates: {sparser.min():.2g} to {sparser.max():.2g} (block); "
            f"the null falls in {int((null < 0).sum())} of {cells}",
        ),
        judge(
            bool(whole.max() < 0),
            id="linear_agrees.sparse_as_a_whole",
            source=source,
            statement="The entropy of attention over all tokens falls, normalised or not.",
            expected="a negative change (nats) everywhere",
            measured=float(whole.max()),
            tolerance=0.0,
            null=float(nothing["entropy, change"].max()),
            null_description="the largest where the context says nothing of the next token",
            evidence=f"it falls in {int((whole[:, 0] < 0).sum())} of {cells} runs of the block and in "
            f"{int((whole[:, 1] < 0).sum())} with normalisation: a heavy common token that falls "
            "spreads attention over the others",
        ),
        judge(
            bool(winner.min() == 1 > nothing["strongest token gains most"].mean()),
            id="linear_agrees.winner",
            source="JoMA Thm 2; Scan&Snap Thm 3",
            statement="Of a next token's distinct tokens the most frequent gains most, in both.",
            expected="true everywhere, and not so where there is nothing to learn",
            measured=float(winner.mean()),
            tolerance=1.0,
            null=float(nothing["strongest token gains most"].mean()),
            null_description="the share where the context says nothing of the next token",
            evidence=f"share of {2 * cells} runs",
        ),
        judge(
            bool(fates.loc[(JOMA, "common falls and distinct rise")] == 1),
            id="linear_agrees.fates",
            source="Scan&Snap Thm 2, for JoMA's linear case",
            statement="The common token falls and every distinct token rises.",
            expected="true in every run, as it is with normalisation",
            measured=float(fates.loc[(JOMA, "common falls and distinct rise")]),
            tolerance=1.0,
            null=float(fates.loc[(NORMALISED, "common falls and distinct rise")]),
            null_description="the share with Scan&Snap's normalisation",
            evidence=f"share of {cells} runs of JoMA's block: without normalisation weak distinct ones "
            "fall and a heavy common token may rise",
        ),
        within(
            float(column("integral, residual", JOMA, NORMALISED).to_numpy().max()),
            1e-9,
            null=float(column("integral without correction, residual", JOMA, NORMALISED).to_numpy().min()),
            null_description="without the correction",
            id="linear_agrees.integral",
            source="JoMA Thm 1, softmax",
            statement="z' = (eta_Z/eta_Y) d/dt [sum_k v_k^2/2] less a correction: JoMA's exact integral "
            "is Scan&Snap's too, normalised or not.",
            evidence="relative residual at every stored state; correction c (c . g), or f^2 (f . g) with "
            "f = c/|c|",
        ),
        within(
            float(column("sum of logits, drift", JOMA, NORMALISED).to_numpy().max()),
            1e-6,
            id="linear_agrees.sum",
            source="JoMA Thm 1, softmax",
            statement="The sum of the attention logits is conserved, normalised or not.",
            evidence=f"largest |1'z(t) - 1'z(0)| over {cells} data sets and rates",
        ),
    ]

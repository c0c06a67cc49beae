"""Where the two theories are one, and where they are not."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, below, equal, statements, within_error
from joma.experiments.joma_paper.linear_agrees import JOMA, KEYS, NORMALISED, LinearAgrees

STATEMENTS = statements(
    {
        "linear_agrees.coincide": "JoMA Sec. 1 | For linear activation, JoMA coincides with Scan&Snap.",
        "linear_agrees.sparse": "JoMA Sec. 1 | For linear activation attention becomes sparse (entropy among "
        "distinct tokens).",
        "linear_agrees.sparse_as_a_whole": "JoMA Sec. 1 | The entropy of attention over all tokens falls, "
        "normalised or not, as it does not where there is nothing to learn.",
        "linear_agrees.winner": "JoMA Thm 2; Scan&Snap Thm 3 | Of a next token's distinct tokens the most "
        "frequent gains most, in both.",
        "linear_agrees.fates": "Scan&Snap Thm 2, for JoMA's linear case | The common token falls and every "
        "distinct token rises.",
        "linear_agrees.integral": "JoMA Thm 1, softmax | z' = (eta_Z/eta_Y) d/dt [sum_k v_k^2/2] less a "
        "correction: JoMA's exact integral is Scan&Snap's too, normalised or not.",
        "linear_agrees.sum": "JoMA Thm 1, softmax | The sum of the attention logits is conserved, normalised "
        "or not.",
    },
    exact=(
        "linear_agrees.coincide",
        "linear_agrees.integral",
        "linear_agrees.sum",
    ),
)


def claims(settings: LinearAgrees, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Where the two theories are one, and where they are not."""
    numbers = tables["agreement"].pivot_table(index=KEYS, columns=["run", "metric"], values="value")
    cells = len(numbers)
    nothing = tables["uninformative"].pivot_table(index=KEYS, columns="metric", values="value")
    null = nothing["entropy of distinct tokens, change"]
    change = "change of the entropy"

    def column(metric: str, *runs: str) -> pd.DataFrame:
        return numbers[[(run, metric) for run in runs]]

    difference = float(column("logits, difference to Y/Z", JOMA).to_numpy().max())
    moved = column("attention moved against the block", NORMALISED).to_numpy()
    sparser = column("entropy of distinct tokens, change", JOMA).to_numpy()
    whole = column("entropy, change", JOMA, NORMALISED).to_numpy()
    fates = column("common falls and distinct rise", JOMA, NORMALISED).mean()
    winner = column("strongest token gains most", JOMA, NORMALISED).to_numpy()
    chance = float(nothing["strongest token gains most"].mean())
    return [
        STATEMENTS["linear_agrees.coincide"].correct(
            "It is Scan&Snap without the division by |c_n|, exactly; with that division attention "
            "goes elsewhere.",
            printed_error=float(moved.max()),
            error=difference,
            tolerance=1e-6,
            evidence=f"{cells} data sets and rates, softmax attention, cross-entropy. Right: largest "
            "difference of logits between the block and plain Y/Z. Printed: share of attention elsewhere "
            f"with the normalisation ({moved.min():.2g} to {moved.max():.2g})",
        ),
        STATEMENTS["linear_agrees.sparse"].judge(
            below(0, sparser.max(), of=f"{change} among distinct tokens", across="everywhere", unit="nats"),
            null=float(null.median()),
            null_description="same tokens, context that says nothing of the next token (median)",
            evidence=f"{cells} data sets and rates: {sparser.min():.2g} to {sparser.max():.2g} (block); "
            f"the null falls in {int((null < 0).sum())} of {cells}",
        ),
        STATEMENTS["linear_agrees.sparse_as_a_whole"].judge(
            below(0, whole.max(), of=change, across="everywhere", unit="nats")
            & below(
                nothing["entropy, change"].min(),
                whole.max(),
                of=change,
                than="any where the context says nothing of the next token",
                across="everywhere",
                unit="nats",
            ),
            null=float(nothing["entropy, change"].max()),
            null_description="the largest where the context says nothing of the next token",
            evidence=f"it falls in {int((whole[:, 0] < 0).sum())} of {cells} runs of the block and in "
            f"{int((whole[:, 1] < 0).sum())} with normalisation: a heavy common token that falls "
            "spreads attention over the others",
        ),
        STATEMENTS["linear_agrees.winner"].judge(
            equal(1, winner.mean(), of="share of runs where the most frequent gains most")
            & below(1, chance, of="the same where there is nothing to learn"),
            null=chance,
            null_description="the share where the context says nothing of the next token",
            evidence=f"share of {2 * cells} runs",
        ),
        STATEMENTS["linear_agrees.fates"].judge(
            equal(
                1,
                fates.loc[(JOMA, "common falls and distinct rise")],
                of="share of runs of JoMA's block where both are so",
            ),
            null=float(fates.loc[(NORMALISED, "common falls and distinct rise")]),
            null_description="the share with Scan&Snap's normalisation",
            evidence=f"share of {cells} runs of JoMA's block: without normalisation weak distinct ones "
            "fall and a heavy common token may rise",
        ),
        STATEMENTS["linear_agrees.integral"].judge(
            within_error(1e-9, column("integral, residual", JOMA, NORMALISED).to_numpy().max()),
            null=float(column("integral without correction, residual", JOMA, NORMALISED).to_numpy().min()),
            null_description="without the correction",
            evidence="relative residual at every stored state; correction c (c . g), or f^2 (f . g) with "
            "f = c/|c|",
        ),
        STATEMENTS["linear_agrees.sum"].judge(
            within_error(1e-6, column("sum of logits, drift", JOMA, NORMALISED).to_numpy().max()),
            evidence=f"largest |1'z(t) - 1'z(0)| over {cells} data sets and rates",
        ),
    ]

"""What the caption and the text of Fig. 2 say, and what holds exactly."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Criterion, at_least, below, statements, within_error
from joma.core.tables import rows
from joma.experiments.joma_paper.fig2 import DATA, Fig2

HIGH = 0.9
"""What counts as a high correlation, for the prediction and for its parts alike."""

STATEMENTS = statements(
    {
        "fig2.{data}_correlation": "JoMA Fig. 2, caption | {data} classes: z_hat shows high correlation "
        "with z.",
        "fig2.{data}_part_{part}": "JoMA Fig. 2, caption | {data} classes: the component z_hat{part} alone "
        "does not correlate highly with z, where the whole does.",
        "fig2.{data}_scale": "JoMA Sec. 3: 'still predicts z_m(t) fairly well' | {data} classes: z_hat is "
        "closer to z than the guess that z never moves.",
        "fig2.{data}_moving_mean": "JoMA Thm 1, softmax, Eq. 17 | {data} classes: Eq. 17 with bbar as it "
        "moves beats the guess that z never moves: what fails is the constancy of bbar.",
        "fig2.{data}_identity": "JoMA Thm 1, softmax, made exact | {data} classes: the integral identity, "
        "squared steps counted, gives z exactly.",
    },
    exact=("fig2.{data}_identity",),
)


def claims(settings: Fig2, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The caption's three statements, the text's 'fairly well', and what holds exactly."""
    summary = tables["summary"]
    final = rows(summary, statistic="final").pivot_table(
        index=["data", "metric"], columns="run", values="value"
    )
    least = rows(summary, statistic="least", metric="correlation_1")
    return [
        claim
        for data in DATA
        for claim in _claims(data, final.loc[data], float(rows(least, data=data)["value"].median()))
    ]


def _claims(data: str, final: pd.DataFrame, least_first: float) -> list[Claim]:
    seeds = f"of {final.shape[1]} seeds, at the end of training"
    shuffled = float(final.loc["correlation_shuffled"].abs().max())
    high = float(final.loc["correlation"].min())
    errors = {name: float(final.loc[name].median()) for name in ("error", "error_moving", "error_integral")}
    still = final.loc["error_still"]

    def better(error: str) -> Criterion:
        guess = "that of the guess z(0)"
        return below(still, final.loc[error], of="relative error", than=guess, across="in every seed")

    alone = {part: float(final.loc[f"correlation_{part}"].abs().max()) for part in (1, 2)}
    claims = [
        STATEMENTS["fig2.{data}_correlation"]
        .fill(data=data)
        .judge(
            at_least(HIGH, high, of="correlation", across="in every seed"),
            null=shuffled,
            null_description="size of the correlation with z_hat's tokens shuffled, largest of the seeds",
            evidence=f"smallest {seeds}; median {final.loc['correlation'].median():.2f}",
        )
    ]
    claims += [
        STATEMENTS["fig2.{data}_part_{part}"]
        .fill(data=data, part=part)
        .judge(
            below(HIGH, alone[part], of="size of the correlation", across="in every seed")
            & at_least(HIGH, high, of="correlation of the whole", across="in every seed"),
            null=shuffled,
            null_description="size of the correlation with z_hat's tokens shuffled, largest of the seeds",
            evidence=f"largest {seeds}; median {final.loc[f'correlation_{part}'].median():.2f}"
            + (f"; its least in training: {least_first:.2f}" if part == 1 else ""),
        )
        for part in (1, 2)
    ]
    return [
        *claims,
        STATEMENTS["fig2.{data}_scale"]
        .fill(data=data)
        .judge(
            better("error"),
            measured=final.loc["error"].max(),
            null=still.min(),
            null_description="relative error of the guess that z stays at z(0), smallest of the seeds",
            evidence=f"largest {seeds}, median {errors['error']:.2f}; bbar moves by "
            f"{final.loc['mean_score_shift'].median():.2f} of at most 2 (L1)",
        ),
        STATEMENTS["fig2.{data}_moving_mean"]
        .fill(data=data)
        .judge(
            better("error_moving"),
            measured=final.loc["error_moving"].max(),
            null=still.min(),
            null_description="relative error of the guess that z stays at z(0), smallest of the seeds",
            evidence=f"largest {seeds}, median {errors['error_moving']:.2f}; {errors['error']:.2f} with bbar "
            "of the start",
        ),
        STATEMENTS["fig2.{data}_identity"]
        .fill(data=data)
        .judge(
            within_error(1e-10, final.loc["error_exact"].max()),
            null=errors["error_integral"],
            null_description="relative error without the squared steps: O(rate)",
            evidence=f"largest of {final.shape[1]} seeds",
        ),
    ]


def answer(settings: Fig2, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """How well Theorem 1's softmax form predicts attention logits."""
    final = rows(tables["summary"], statistic="final").groupby("metric")["value"].median()
    return [
        f"Under softmax attention Theorem 1's prediction correlates with the trained logits by "
        f"{final['correlation']:.2f} but is off by {final['error']:.1f} times their size; with the integral "
        f"that the theorem drops kept, it is exact to {final['error_exact']:.0e}."
    ]

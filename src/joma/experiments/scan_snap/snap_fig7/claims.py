"""The claims of ``joma.experiments.scan_snap.snap_fig7``, from its tables alone."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Statement, above, at_least, below, equal, statements
from joma.core.tables import rows
from joma.experiments.scan_snap.snap_fig7 import SnapFig7

LEAST_FALL = 0.3
"""Nats by which the entropy of attention must fall to be called sparser."""
STATEMENTS = statements(
    {
        "snap_fig7.keeps_falling": "Scan&Snap Fig. 7, its pictures one after the other | The lowest layer's "
        "attention is sparser in each picture than in the one before.",
        "snap_fig7.common_suppressed": "Scan&Snap Thm 2b, asked of Fig. 7's models | Common tokens are "
        "suppressed: the most frequent ones get less attention than their share.",
        "snap_fig7.own_token": "what Fig. 7's maps may hide (not in the paper) | Sparse attention is "
        "attention to the own token: it gathers on the map's diagonal.",
    }
)


def claims(settings: SnapFig7, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Sparsity in the lowest layer, its course, and what it is made of."""
    curves = tables["curves"]
    ends = _starts_and_ends(curves[curves["layer"].fillna(0) == 0])
    steps = sorted(tables["maps"]["step"].unique().tolist())
    claims = []
    for depth in sorted(curves["depth"].unique().tolist()):
        claims.append(_becomes_sparse(depth, rows(ends, depth=depth)))
        claims.append(_because_of_order(depth, curves, steps))
    return [*claims, _keeps_falling(curves, steps), _common_suppressed(ends), _on_the_diagonal(ends)]


def _starts_and_ends(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run: each measure of the lowest layer at the first and at the last step."""
    wide = curves.pivot_table(index=["run", "depth", "text", "step"], columns="metric", values="value")
    by_run = wide.groupby(["run", "depth", "text"], sort=True)
    first, last = by_run.first(), by_run.last()
    return first.add_suffix("_start").join(last.add_suffix("_end")).reset_index()


def _becomes_sparse(depth: int, ends: pd.DataFrame) -> Claim:
    real = rows(ends, text="real")
    fall, null = (
        one["attention_entropy_start"] - one["attention_entropy_end"]
        for one in (real, rows(ends, text="shuffled"))
    )
    return Statement(
        f"snap_fig7.sparse_{depth}",
        "Scan&Snap Fig. 7",
        f"Attention in the lowest layer of a {depth}-layer transformer becomes sparse, more than on shuffled "
        "words.",
    ).judge(
        at_least(LEAST_FALL, fall, of="fall of the entropy", across="in every run", unit="nats")
        & above(
            null.max(),
            fall,
            of="fall of the entropy",
            than="any on shuffled words",
            across="in every run",
            unit="nats",
        ),
        null=float(null.max()),
        null_description="largest fall of the same decoder on the same words in random order",
        evidence=f"smallest of {len(real)} runs; untrained {real['attention_entropy_start'].mean():.2f}, "
        f"uniform {real['uniform_entropy_end'].mean():.2f}, "
        f"trained {real['attention_entropy_end'].mean():.2f} nats",
    )


def _because_of_order(depth: int, curves: pd.DataFrame, steps: list[int]) -> Claim:
    entropy = rows(curves, metric="attention_entropy", layer=0, depth=depth)
    by_run = rows(entropy, step=steps).pivot(index=["text", "run"], columns="step", values="value")
    falls = by_run.rsub(by_run[steps[0]], axis=0)
    real, null = falls.loc["real"].min(), falls.loc["shuffled"].max()
    pairs = ", ".join(f"step {step}: {real[step]:.2f} and {null[step]:.2f}" for step in steps[1:])
    return Statement(
        f"snap_fig7.from_order_{depth}",
        "what Fig. 7 is shown for (its null is not in the paper)",
        f"It is what tokens have to do with each other that makes attention sparse ({depth} "
        f"layer{'s' if depth > 1 else ''}): without it, attention stays dense.",
    ).judge(
        at_least(
            LEAST_FALL + null.iloc[-1],
            real.iloc[-1],
            of="smallest fall of the entropy, at the end,",
            than=f"{LEAST_FALL} nats more than that of the null",
            unit="nats",
        ),
        null=float(null.iloc[-1]),
        null_description="fall of the same decoder on the same words in random order",
        evidence=f"smallest fall of the runs and that of the null: {pairs}",
    )


def _keeps_falling(curves: pd.DataFrame, steps: list[int]) -> Claim:
    at = rows(curves, metric="attention_entropy", layer=0, step=steps)
    all_falls = at.pivot(index=["text", "run"], columns="step", values="value").diff(axis=1).iloc[:, 1:]
    falls, shuffled = all_falls.loc["real"], all_falls.loc["shuffled"]
    share = float((falls < 0).to_numpy().mean())
    return STATEMENTS["snap_fig7.keeps_falling"].judge(
        equal(
            1, share, of="share of pictured steps, over all runs, with a lower entropy than the one before"
        ),
        null=float((shuffled < 0).to_numpy().mean()),
        null_description="the share on shuffled text",
        evidence=f"{falls.size} pairs of pictures; largest rise {falls.to_numpy().max():.3f} nats",
    )


def _common_suppressed(ends: pd.DataFrame) -> Claim:
    real = rows(ends, text="real")
    worst = float(real["common_tokens_end"].max())
    null = float(real["common_tokens_start"].min())
    of = "attention to the most frequent tokens over that under uniform attention"
    return STATEMENTS["snap_fig7.common_suppressed"].judge(
        below(0.9, worst, of=of, across="in every run")
        & below(null, worst, of=of, than="any before training", across="in every run"),
        null=null,
        null_description="before training",
        evidence=f"largest of {len(real)} runs; mean {real['common_tokens_end'].mean():.2f}; shuffled text "
        f"{ends.loc[ends['text'] == 'shuffled', 'common_tokens_end'].mean():.2f}",
    )


def _on_the_diagonal(ends: pd.DataFrame) -> Claim:
    real = rows(ends, text="real")
    own, uniform = float(real["own_token_end"].min()), float(real["uniform_own_token_end"].max())
    untrained = float(real["own_token_start"].max())
    of = "attention to the own token"
    return STATEMENTS["snap_fig7.own_token"].judge(
        above(2 * uniform, own, of=of, than="twice any under uniform attention", across="in every run")
        & above(untrained, own, of=of, than="any before training", across="in every run"),
        null=untrained,
        null_description="the largest before training",
        evidence=f"smallest of {len(real)} runs; uniform attention {uniform:.3f}, shuffled text "
        f"{ends.loc[ends['text'] == 'shuffled', 'own_token_end'].mean():.3f}",
    )

"""The claims of ``joma.experiments.scan_snap.snap_fig7``, from its tables alone."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, judge
from joma.experiments.scan_snap.snap_fig7 import SnapFig7

LEAST_FALL = 0.3
"""Nats by which the entropy of attention must fall to be called sparser."""


def claims(settings: SnapFig7, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Sparsity in the lowest layer, its course, and what it is made of."""
    curves = tables["curves"]
    ends = _starts_and_ends(curves[curves["layer"].fillna(0) == 0])
    steps = sorted(tables["maps"]["step"].unique().tolist())
    claims = []
    for depth in sorted(curves["depth"].unique().tolist()):
        claims.append(_becomes_sparse(depth, ends[ends["depth"] == depth]))
        claims.append(_because_of_order(depth, curves, steps))
    return [*claims, _keeps_falling(curves, steps), _common_suppressed(ends), _on_the_diagonal(ends)]


def _starts_and_ends(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run: each measure of the lowest layer at the first and at the last step."""
    wide = curves.pivot_table(index=["run", "depth", "text", "step"], columns="metric", values="value")
    by_run = wide.groupby(["run", "depth", "text"], sort=True)
    first, last = by_run.first(), by_run.last()
    return first.add_suffix("_start").join(last.add_suffix("_end")).reset_index()


def _becomes_sparse(depth: int, ends: pd.DataFrame) -> Claim:
    real = ends[ends["text"] == "real"]
    fall = real["attention_entropy_start"] - real["attention_entropy_end"]
    return judge(
        float(fall.min()) >= LEAST_FALL,
        id=f"snap_fig7.sparse_{depth}",
        source="Scan&Snap Fig. 7",
        statement=f"Attention in the lowest layer of a {depth}-layer transformer becomes sparse.",
        expected=f"entropy falls by at least {LEAST_FALL} nats in every run",
        measured=float(fall.min()),
        tolerance=LEAST_FALL,
        evidence=f"smallest of {len(real)} runs; untrained {real['attention_entropy_start'].mean():.2f}, "
        f"uniform {real['uniform_entropy_end'].mean():.2f}, "
        f"trained {real['attention_entropy_end'].mean():.2f} nats "
        "(what order has to do with it is a claim of its own)",
    )


def _because_of_order(depth: int, curves: pd.DataFrame, steps: list[int]) -> Claim:
    entropy = curves[
        (curves["metric"] == "attention_entropy") & (curves["layer"] == 0) & (curves["depth"] == depth)
    ]
    by_run = entropy[entropy["step"].isin(steps)].pivot(index=["text", "run"], columns="step", values="value")
    falls = by_run.rsub(by_run[steps[0]], axis=0)
    real, null = falls.loc["real"].min(), falls.loc["shuffled"].max()
    pairs = ", ".join(f"step {step}: {real[step]:.2f} and {null[step]:.2f}" for step in steps[1:])
    return judge(
        float(real.iloc[-1]) >= LEAST_FALL + float(null.iloc[-1]),
        id=f"snap_fig7.from_order_{depth}",
        source="what Fig. 7 is shown for (its null is not in the paper)",
        statement=f"It is what tokens have to do with each other that makes attention sparse ({depth} "
        f"layer{'s' if depth > 1 else ''}): without it, attention stays dense.",
        expected=f"at the end, the smallest fall is at least {LEAST_FALL} nats above the null",
        measured=float(real.iloc[-1]),
        tolerance=LEAST_FALL,
        null=float(null.iloc[-1]),
        null_description="fall of the same decoder on the same words in random order",
        evidence=f"smallest fall of the runs and that of the null: {pairs}",
    )


def _keeps_falling(curves: pd.DataFrame, steps: list[int]) -> Claim:
    entropy = curves[(curves["metric"] == "attention_entropy") & (curves["layer"] == 0)]
    at = entropy[entropy["step"].isin(steps)]
    all_falls = at.pivot(index=["text", "run"], columns="step", values="value").diff(axis=1).iloc[:, 1:]
    falls, shuffled = all_falls.loc["real"], all_falls.loc["shuffled"]
    share = float((falls < 0).to_numpy().mean())
    return judge(
        share == 1,
        id="snap_fig7.keeps_falling",
        source="Scan&Snap Fig. 7, its pictures one after the other",
        statement="The lowest layer's attention is sparser in each picture than in the one before.",
        expected="entropy lower at each pictured step than at the one before, in every run",
        measured=share,
        null=float((shuffled < 0).to_numpy().mean()),
        null_description="the share on shuffled text",
        evidence=f"{falls.size} pairs of pictures; largest rise {falls.to_numpy().max():.3f} nats",
    )


def _common_suppressed(ends: pd.DataFrame) -> Claim:
    real = ends[ends["text"] == "real"]
    worst = float(real["common_tokens_end"].max())
    null = float(real["common_tokens_start"].min())
    return judge(
        worst < min(0.9, null),
        id="snap_fig7.common_suppressed",
        source="Scan&Snap Thm 2b, asked of Fig. 7's models",
        statement="Common tokens are suppressed: the most frequent ones get less attention than their share.",
        expected="attention to the most frequent tokens below 0.9 of that under uniform attention, and below "
        "that before training, in every run (lowest layer)",
        measured=worst,
        tolerance=0.9,
        null=null,
        null_description="before training",
        evidence=f"largest of {len(real)} runs; mean {real['common_tokens_end'].mean():.2f}; shuffled text "
        f"{ends.loc[ends['text'] == 'shuffled', 'common_tokens_end'].mean():.2f}",
    )


def _on_the_diagonal(ends: pd.DataFrame) -> Claim:
    real = ends[ends["text"] == "real"]
    own, uniform = float(real["own_token_end"].min()), float(real["uniform_own_token_end"].max())
    untrained = float(real["own_token_start"].max())
    return judge(
        own > max(2 * uniform, untrained),
        id="snap_fig7.own_token",
        source="what Fig. 7's maps may hide (not in the paper)",
        statement="Sparse attention is attention to the own token: it gathers on the map's diagonal.",
        expected="attention to the own token more than twice that of uniform attention, in every run",
        measured=own,
        tolerance=2 * uniform,
        null=untrained,
        null_description="the largest before training",
        evidence=f"smallest of {len(real)} runs; uniform attention {uniform:.3f}, shuffled text "
        f"{ends.loc[ends['text'] == 'shuffled', 'own_token_end'].mean():.3f}",
    )

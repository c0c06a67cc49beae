"""The slides' two statements on the rates, and the authors' numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, judge, not_tested
from joma.experiments.scan_snap.snap_fig6 import CELL, SnapFig6


def claims(settings: SnapFig6, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The slides' two statements on the rates, and the authors' numbers."""
    entropy = tables["entropy"]
    large = entropy[entropy["ratio"] >= 2]
    return [
        _trend(
            entropy,
            along="eta_z",
            sign=-1,
            id="snap_fig6.sparser_with_eta_z",
            source="Scan&Snap, slide of Thm 4, (1), and Fig. 6",
            statement="At a fixed ratio eta_Y/eta_Z, larger rates leave attention sparser.",
        ),
        _trend(
            large,
            along="ratio",
            sign=1,
            id="snap_fig6.denser_with_ratio",
            source="Scan&Snap, slide of Thm 4, (2), and Fig. 6",
            statement="At a fixed eta_Z, a larger eta_Y leaves attention denser, where eta_Y >= 2 eta_Z.",
        ),
        _trend(
            entropy,
            along="ratio",
            sign=1,
            id="snap_fig6.denser_with_ratio_everywhere",
            source="Scan&Snap, slide of Thm 4, (2), and Fig. 6",
            statement="At a fixed eta_Z, a larger eta_Y leaves attention denser, at every ratio.",
        ),
        _reproduction(tables["cells"], tables["authors"]),
    ]


def _trend(entropy: pd.DataFrame, *, along: str, sign: int, id: str, source: str, statement: str) -> Claim:
    """Whether entropy goes one way from each cell to its neighbour, in differences paired by seed."""
    last = entropy["step"].max()
    forward, backward, total = _steps(entropy[entropy["step"] == last], along, sign)
    untrained = _steps(entropy[entropy["step"] == 0], along, sign)
    return judge(
        total > 0 and backward == 0 and forward >= total / 2,
        id=id,
        source=source,
        statement=statement,
        expected="more than two standard errors the stated way in at least half of the steps from a cell to "
        "its neighbour, and the other way in none",
        measured=forward / total if total else float("nan"),
        tolerance=0.5,
        null=untrained[0] / total if total else None,
        null_description="the same before training",
        evidence=f"{forward} of {total} steps the stated way, {backward} the other, paired by seed",
    )


def _steps(entropy: pd.DataFrame, along: str, sign: int) -> tuple[int, int, int]:
    """Steps to the next cell ``along`` that go significantly the way of ``sign``, the other way, and all."""
    other = [name for name in CELL if name != along]
    forward = backward = total = 0
    for _, line in entropy.groupby(other):
        differences = sign * line.pivot(index="run", columns=along, values="value").diff(axis=1).iloc[:, 1:]
        mean, error = differences.mean(), differences.std() / len(differences) ** 0.5
        forward += int((mean > 2 * error).sum())
        backward += int((mean < -2 * error).sum())
        total += differences.shape[1]
    return forward, backward, total


def _reproduction(cells: pd.DataFrame, authors: pd.DataFrame) -> Claim:
    """How many cells agree with the authors' within two combined standard errors."""
    named = {
        "id": "snap_fig6.authors_numbers",
        "source": "Scan&Snap Fig. 6",
        "statement": "The authors' mean entropies, cell by cell.",
    }
    both = cells.merge(authors, on=CELL)
    if both.empty:
        reason = (
            "no cell in common with authors_table"
            if len(authors)
            else "no table given (setting authors_table)"
        )
        return not_tested(**named, reason=reason)

    def agreeing(theirs: pd.Series) -> float:
        error = both["standard_error"] ** 2 + both["authors_std"] ** 2 / both["authors_seeds"]
        return float(((both["mean"] - theirs).abs() <= 2 * error**0.5).mean())

    measured = agreeing(both["authors_mean"])
    swapped = both.sort_values([*CELL[:2], "ratio"], ascending=[True, True, False])["authors_mean"]
    return judge(
        measured >= 60 / 64,
        **named,
        expected="at least 60 of 64 cells (0.9375) within two combined standard errors",
        measured=measured,
        tolerance=4 / 64,
        null=agreeing(swapped.set_axis(both.sort_values(CELL).index)),
        null_description="the authors' cells with the order of their ratios reversed",
        evidence=f"{len(both)} cells",
    )

"""The slides' two statements on the rates, and the authors' numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from joma.core.claim import Claim, Statement, at_least, equal, statements
from joma.core.tables import rows
from joma.experiments.scan_snap.snap_fig6 import CELL, SnapFig6

STATEMENTS = statements(
    {
        "snap_fig6.sparser_with_eta_z": "Scan&Snap, slide of Thm 4, (1), and Fig. 6 | At a fixed ratio "
        "eta_Y/eta_Z, larger rates leave attention sparser.",
        "snap_fig6.denser_with_ratio": "Scan&Snap, slide of Thm 4, (2), and Fig. 6 | At a fixed eta_Z, a "
        "larger eta_Y leaves attention denser, where eta_Y >= 2 eta_Z.",
        "snap_fig6.denser_with_ratio_everywhere": "Scan&Snap, slide of Thm 4, (2), and Fig. 6 | At a fixed "
        "eta_Z, a larger eta_Y leaves attention denser, at every ratio.",
        "snap_fig6.authors_numbers": "Scan&Snap Fig. 6 | The authors' mean entropies, cell by cell.",
    }
)


def claims(settings: SnapFig6, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The slides' two statements on the rates, and the authors' numbers."""
    entropy = tables["entropy"]
    large = entropy[entropy["ratio"] >= 2]
    return [
        _trend(entropy, "eta_z", -1, STATEMENTS["snap_fig6.sparser_with_eta_z"]),
        _trend(large, "ratio", 1, STATEMENTS["snap_fig6.denser_with_ratio"]),
        _trend(entropy, "ratio", 1, STATEMENTS["snap_fig6.denser_with_ratio_everywhere"]),
        _reproduction(tables["cells"], tables["authors"]),
    ]


def _trend(entropy: pd.DataFrame, along: str, sign: int, statement: Statement) -> Claim:
    """Whether entropy goes one way from each cell to its neighbour, in differences paired by seed."""
    last = entropy["step"].max()
    forward, backward, total = _steps(rows(entropy, step=last), along, sign)
    untrained = _steps(rows(entropy, step=0), along, sign)
    return statement.judge(
        at_least(
            0.5,
            forward / total if total else float("nan"),
            of="share of the steps between neighbouring cells more than two standard errors the stated way",
        )
        & equal(0, backward, of="number of those as far the other way"),
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
    statement = STATEMENTS["snap_fig6.authors_numbers"]
    both = cells.merge(authors, on=CELL)
    if both.empty:
        reason = (
            "no cell in common with authors_table"
            if len(authors)
            else "no table given (setting authors_table)"
        )
        return statement.not_tested(reason)

    def share_agreeing(theirs: pd.Series) -> float:
        error = both["standard_error"] ** 2 + both["authors_std"] ** 2 / both["authors_seeds"]
        return float(((both["mean"] - theirs).abs() <= 2 * error**0.5).mean())

    measured = share_agreeing(both["authors_mean"])
    swapped = both.sort_values([*CELL[:2], "ratio"], ascending=[True, True, False])["authors_mean"]
    return statement.judge(
        at_least(60 / 64, measured, of="share of the cells within two combined standard errors"),
        null=share_agreeing(swapped.set_axis(both.sort_values(CELL).index)),
        null_description="the authors' cells with the order of their ratios reversed",
        evidence=f"{len(both)} cells",
    )

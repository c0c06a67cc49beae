"""The two phases of Theorem 4, the remarks on the rates, and the closed form of the gain."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from joma.core.claim import Claim, above, at_most, below, between, statements, within_error
from joma.experiments.scan_snap.snap_phases import SnapPhases

ONSET = "the same (growth per ln of the decoder's logit) in the decades around the decoder's half-speed time"
PREMISE = 100.0
"""What eta_Y much larger than eta_Z is taken to mean: at least this ratio."""
ALIKE = 2.0
"""Times of one order differ by at most this factor from the law's, over all rates."""
FAST = f"(eta_Y at least {PREMISE:g} eta_Z)"
STATEMENTS = statements(
    {
        "snap_phases.scanning": "Scan&Snap Thm 4 | When training starts, B_n(t) = O(ln t).",
        "snap_phases.snapping": "Scan&Snap Thm 4 | From t_0 = O(2 K ln M/eta_Y) on, B_n(t) = O(ln ln t).",
        "snap_phases.frozen": "Scan&Snap Thm 4 | Where half the gain lies three decades back, B grows no "
        "faster than ln ln t.",
        "snap_phases.snap_time": "Scan&Snap Thm 4 | Snapping begins at O(2 K ln M/eta_Y).",
        "snap_phases.rates_scanning": "Scan&Snap Thm 4, remarks | While scanning, larger eta_Z or eta_Y "
        "makes B larger.",
        "snap_phases.eta_z_snapping": "Scan&Snap Thm 4, remarks | Once snapping, larger eta_Z makes B larger "
        f"{FAST}.",
        "snap_phases.eta_y_snapping": "Scan&Snap Thm 4, remarks | Once snapping, larger eta_Y makes B "
        f"smaller {FAST}.",
        "snap_phases.phase_transition": "Scan&Snap Thm 4, remarks | Larger eta_Z leads to a faster phase "
        "transition (earlier peak of B').",
        "snap_phases.closed_form": "Scan&Snap Thm 4, factor and constant restored | B = 1/4 ln(1 + "
        "(2 K eta_Z/(C0 eta_Y)) h^2), C0 from the start of the flow.",
    },
    exact=(
        "snap_phases.scanning",
        "snap_phases.rates_scanning",
        "snap_phases.phase_transition",
        "snap_phases.closed_form",
    ),
)


def claims(settings: SnapPhases, tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """The two phases of Theorem 4, the remarks on the rates, and the closed form."""
    phases = tables["phases"].pivot_table(index=["eta_y", "eta_z"], columns="metric", values="value")
    return [*_phase_claims(phases), *_rate_claims(phases), _closed_form(phases["closed form over gain"])]


def _phase_claims(phases: pd.DataFrame) -> list[Claim]:

    def farthest(ratios: pd.Series) -> float:
        return float(ratios.iloc[np.abs(np.log(ratios)).argmax()])

    of = "growth per ln ln t in the last decade over that in the one before,"
    growth, onset = phases["slowing in ln ln t"], phases["slowing in ln h around the decoder time"]
    claims = [
        STATEMENTS["snap_phases.scanning"].correct(
            "B = eta_Y eta_Z t^2 (K-1) f_n(0) . f_n'(0) / (2 K^2 M): it grows as t^2.",
            printed_error=float(phases["line in ln t, error"].min()),
            error=float(phases["law t^2, error"].max()),
            tolerance=0.05,
            evidence=f"relative errors in {len(phases)} runs, the decade up to 1 % of the decoder's time; "
            "the law has no free number, a + b ln t has two",
        ),
        STATEMENTS["snap_phases.snapping"].judge(
            at_most(1, growth.max(), of=of, across="in every run"),
            null=float(onset.max()),
            null_description=ONSET,
            evidence=f"so in {int((growth <= 1).sum())} of {len(growth)} runs; others (small eta_Z/eta_Y) "
            "still speed up in ln ln t long after t_0",
        ),
    ]
    late = growth[phases["decades since half the gain"] >= 3]
    statement = STATEMENTS["snap_phases.frozen"]
    claims.append(
        statement.not_tested("no run reached half its gain three decades before the end; raise horizon")
        if late.empty
        else statement.judge(
            at_most(1, late.max(), of=of, across="in every such run")
            & above(1, onset[late.index].max(), of="the same around the decoder's time, largest,"),
            null=float(onset[late.index].max()),
            null_description=f"{ONSET}, the largest of these runs",
            evidence=f"{len(late)} runs",
        )
    )
    delays = phases["peak time"] / phases["decoder time"]
    alike = "largest over smallest of that ratio"
    delay, outside = delays[_ratio(phases) >= PREMISE], delays[_ratio(phases) < PREMISE]
    times = phases["decoder time"][_ratio(phases) >= PREMISE]
    statement = STATEMENTS["snap_phases.snap_time"]
    claims.append(
        statement.not_tested(f"no pair of rates with eta_Y at least {PREMISE:g} eta_Z")
        if delay.empty
        else statement.judge(
            between(
                0.1, 10, farthest(delay), of="peak of B' over the decoder's half-speed time, farthest from 1,"
            )
            & at_most(ALIKE, delay.max() / delay.min(), of=alike),
            null=None if outside.empty else outside.max() / outside.min(),
            null_description=f"{alike}, where eta_Y is below {PREMISE:g} eta_Z",
            evidence=f"peak over half-speed time {delay.min():.3g} to {delay.max():.3g} in {len(delay)} "
            f"runs, whose half-speed times differ by a factor of {times.max() / times.min():.3g}",
        )
    )
    return claims


def _ratio(phases: pd.DataFrame) -> np.ndarray:
    """eta_Y/eta_Z of each run, a hair up, so that 0.1/0.001 counts as 100."""
    return np.array([y / z * (1 + 1e-9) for y, z in phases.index])


def _rate_claims(phases: pd.DataFrame) -> list[Claim]:
    """The slides' remarks, between neighbours in one rate with the other fixed."""

    def steps(metric: str, rate: str, runs: pd.DataFrame) -> list[float]:
        """The metric's ratios from each rate to the next above it."""
        other = "eta_z" if rate == "eta_y" else "eta_y"
        rows = [group.sort_index(level=rate)[metric].to_list() for _, group in runs.groupby(level=other)]
        return [b / a for row in rows for a, b in pairwise(row)]

    fast, slow = phases[_ratio(phases) >= PREMISE], phases[_ratio(phases) < PREMISE]
    early = steps("early gain", "eta_z", phases) + steps("early gain", "eta_y", phases)
    checked: dict[str, tuple[list[float], int, list[float]]] = {
        "rates_scanning": (early, 1, []),
        "eta_z_snapping": (steps("gain", "eta_z", fast), 1, steps("gain", "eta_z", slow)),
        "eta_y_snapping": (steps("gain", "eta_y", fast), -1, steps("gain", "eta_y", slow)),
        "phase_transition": (steps("peak time", "eta_z", phases), -1, []),
    }
    claims = []
    for name, (ratios, sign, outside) in checked.items():
        statement = STATEMENTS[f"snap_phases.{name}"]
        if not ratios:
            claims.append(statement.not_tested("no two such runs that differ in one rate; give more rates"))
            continue
        extreme, beyond = (min, above) if sign > 0 else (max, below)
        claims.append(
            statement.judge(
                beyond(1, ratios, of="ratio between neighbours", across="in every pair"),
                null=extreme(outside) if outside else None,
                null_description=f"eta_Y below {PREMISE:g} eta_Z" if outside else "",
                evidence=f"{len(ratios)} pairs of runs that share all but that rate; the extreme ratio is "
                "given",
            )
        )
    return claims


def _closed_form(form: pd.Series) -> Claim:
    off = np.log(form).abs()
    return STATEMENTS["snap_phases.closed_form"].judge(
        within_error(0.1, off, of="|ln| of closed form over measured gain at the end", across="in every run"),
        measured=float(form.iloc[off.argmax()]),
        evidence=f"{form.min():.2g} to {form.max():.2g} in {len(form)} runs: h assumes orthonormal f_n, "
        "but only f_n that overlap drive attention, and then the decoder is slower and xi lasts longer",
    )

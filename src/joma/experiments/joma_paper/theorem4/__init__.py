"""JoMA Theorem 4, measured: how much sooner salient components converge, for each kind of attention."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Theorem4(Experiment):
    """(ln 1/delta_j)/(ln 1/delta_k) along integrated flows, against the law for each attention.

    Exp attention at two temperatures (Theorem 4), linear attention (its remark, which gives no formula),
    softmax attention with uniform and with skewed average attention bbar (not in the paper), and no
    attention, where salience must not matter (the null). The flows are integrated in ln 1/delta by
    DOP853 and know nothing of the laws. All of it is about Eq. 6, which is not the flow of the paper's own
    block: there the gate reads the attended input. The bound on Lambda and its condition are judged by
    ``joma check theorem4``.

    Tables: ``ratio`` (one row per attention, component j and time, against the least salient component
    k), ``limits`` (the law, the ratio of speeds at the end, and their relative difference), ``deviation``
    (Lambda for exp attention, exactly, down to delta_k = 1e-300 and beyond, with the bounds).
    """

    title = "Eq. 6: convergence ratios of salient components, measured against the law"
    reproduces = "JoMA Thm 4"
    presets = {"quick": {}, "paper": {}}
    critical_points: tuple[float, ...] = setting(
        (3.0, 2.5, 2.0), "mu of each component; the last is k", above=0.0, at_most=5.0
    )
    temperature: float = setting(1.5, "the second temperature T of exp attention", above=0.5, at_most=10.0)
    logit_square: float = setting(0.04, "z(0)^2 of linear attention", above=0.0, at_most=4.0)
    skew: float = setting(
        0.5,
        "bbar of the first component under skewed softmax; the others share the rest",
        above=0.0,
        below=1.0,
    )
    longest: float = setting(1e4, "time of the longest flow", at_least=100.0, at_most=1e6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.critical_points) < 2:
            raise InputError(
                f"theorem4: setting critical_points = {self.critical_points!r} has fewer than two members; "
                "a ratio needs two components."
            )

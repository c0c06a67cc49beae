"""Scan&Snap's two phases: how the gain B_n(t) scans, snaps and freezes, and what both rates do to it."""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class SnapPhases(Experiment):
    """The gain B_n(t) of Scan&Snap's Theorems 3 and 4 along the population flow (T -> infinity).

    One last token, K next tokens, one common token (Theorem 2's condition), graded distinct tokens, from
    Y(0) = Z(0) = 0. The common token of the main data set has about the share that the ten common tokens of
    Fig. 6 have together.

    Tables: ``gain`` (B, its rate and the common token's share over time, for each pair of rates),
    ``phases`` (what each of these runs says of scanning and snapping), ``laws`` (Theorem 3, and the
    hypothesis behind Theorem 4, for several data sets and eta_Y/eta_Z; they are judged by ``joma check
    snap_theorem3 snap_theorem4``), ``overlap`` (the courses of ln f_n . f_n' behind that).
    """

    title = "Scanning and snapping: B(t), both learning rates, Theorems 3 and 4"
    reproduces = "Scan&Snap Thm 3, Thm 4"
    presets = {"quick": {}, "paper": {}}
    next_tokens: tuple[int, ...] = setting(
        (2, 3, 5), "K of each data set; the first is the main one", at_least=2
    )
    common_weights: tuple[float, ...] = setting(
        (5.0, 1.0), "weight of the common token before normalisation; the first is the main one", above=0.0
    )
    distinct: int = setting(10, "distinct tokens of each next token, weights 0.1 to 1", at_least=2)
    eta_y: tuple[float, ...] = setting((0.1, 1.0, 10.0), "learning rates of the decoder", above=0.0)
    eta_z: tuple[float, ...] = setting((0.001, 0.01, 0.1, 1.0), "learning rates of attention", above=0.0)
    horizon: float = setting(1e5, "time at the end", at_least=1e3)

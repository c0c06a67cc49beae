"""Scan&Snap's lemma and theorems against its own dynamics: gradients, population flows, finite sequences."""

from __future__ import annotations

from collections.abc import Callable

from joma.checks.scan_snap.decoder import snap_decoder, snap_theorem1
from joma.checks.scan_snap.equations import snap_dynamics, snap_lemma2
from joma.checks.scan_snap.fates import snap_theorem2, snap_theorem3
from joma.checks.scan_snap.snapping import snap_theorem4
from joma.core.claim import Claim

CHECKS: dict[str, Callable[[], list[Claim]]] = {
    "snap_dynamics": snap_dynamics,
    "snap_lemma2": snap_lemma2,
    "snap_decoder": snap_decoder,
    "snap_theorem1": snap_theorem1,
    "snap_theorem2": snap_theorem2,
    "snap_theorem3": snap_theorem3,
    "snap_theorem4": snap_theorem4,
}

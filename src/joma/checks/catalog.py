"""All checks by group name, in the order of the papers, and how to run them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from joma.core.claim import Claim
from joma.core.errors import InputError, nearest
from joma.core.progress import Progress
from joma.core.threads import limit_threads

MODULES = (
    "block",
    "invariants",
    "positions",
    "stack",
    "winner_take_all",
    "isotropic",
    "critical_points",
    "asides",
    "remarks",
    "salience",
    "fig4",
    "block_flow",
    "block_boundary",
    "coverage",
    "block_rank",
    "latent_tree",
    "feature_graph",
    "feature_limit",
    "coherence",
    "optimizers",
    "scan_snap",
    "scan_snap_steps",
    "local_tokens",
)


def groups() -> dict[str, Callable[[], list[Claim]]]:
    """Group name -> function that computes its claims."""
    found: dict[str, Callable[[], list[Claim]]] = {}
    for name in MODULES:
        found.update(importlib.import_module(f"joma.checks.{name}").CHECKS)
    return found


def check(*names: str) -> list[Claim]:
    """Verify the papers' theorems, lemmas and errata numerically.

    Args:
        names: groups of checks, such as ``theorem2`` or ``lemma4``; none: all.

    Returns:
        The claims, each with its verdict: ``holds``, ``corrected`` (a misprint whose correction holds) or
        ``fails``.

    Raises:
        InputError: there is no group of such a name; the message names the nearest.

    Examples:
        >>> sorted({claim.verdict for claim in joma.check("lemma4")})
        ['corrected', 'holds']
    """
    return run_checks(names, Progress(quiet=True))


def run_checks(names: Sequence[str] = (), progress: Progress | None = None) -> list[Claim]:
    """The claims of the named groups, or of all.

    Raises:
        InputError: an unknown group; the message names the nearest.
    """
    known = groups()
    for name in names:
        if name not in known:
            raise InputError(f"there is no group of checks {name!r}; {nearest(name, known)}")
    chosen = list(names) or list(known)
    progress = progress or Progress()
    with limit_threads(1):
        return [claim for name in progress.track(chosen, "joma check") for claim in known[name]()]

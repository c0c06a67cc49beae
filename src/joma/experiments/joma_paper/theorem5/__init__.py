"""JoMA Theorem 5, measured: how the co-occurrence of two tokens falls with the height of their ancestor."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Theorem5(Experiment):
    """P[y_l = 1 | y_m = 1] of two tokens of HBLT(rho) whose common latent ancestor is H edges above them.

    D equally likely classes trigger one subtree each; rho_0 = 1 - 2/D (Theorem 5's own definition gives
    1 - 1/D). Tokens are drawn from the top down and counted, beside the theorem's formula as printed and as
    corrected; drawn tokens yield one independent pair per sequence, so that the standard errors are right.
    That the formula is exact, and what Eq. 8 lacks, is for ``joma check theorem5 equation8``.

    Tables: ``cooccurrence`` (rho, H, and one row per route), ``expansion`` (Eq. 8's error for rho = rho_0
    = 1 - eps, as printed and with the term it drops).
    """

    title = "Tokens with a low common ancestor co-occur most: Theorem 5, exact, sampled and as printed"
    reproduces = "JoMA Thm 5, Eq. 8"
    cost = {"paper": "10 s"}
    presets = {"quick": {}, "paper": {"samples": 2_000_000, "depth": 8}}
    depth: int = setting(6, "L, edges from the class label to a token", at_least=3, at_most=12)
    edge_correlations: tuple[float, ...] = setting(
        (0.98, 0.9, 0.7), "rho, one curve each", above=0.0, below=1.0
    )
    classes: int = setting(10, "D, classes of the label", at_least=2)
    samples: int = setting(400_000, "sequences drawn", at_least=1000)
    expansion: tuple[float, ...] = setting(
        (1e-1, 1e-2, 1e-3, 1e-4, 1e-5), "eps of Eq. 8, falling", above=0.0, below=0.5
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("edge_correlations", 1), ("expansion", 2)):
            given = getattr(self, name)
            if len(given) < least:
                raise InputError(
                    f"theorem5: setting {name} = {given!r} needs at least {least} different values."
                )

"""JoMA Fig. 9: the curve G(y), and which laws of the data allow a critical point at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Fig9(Experiment):
    """G(y) = F(theta_1^-1(y)) for laws of light and of heavy tails, with the test of Eq. 58.

    A critical point of the joint flow of (v, xi) needs a line through the origin that meets G twice, i.e.
    the mean excess H = G(y)/y to take a value twice. The paper draws one curve and finds the points from
    Eq. 58; but H rises for every log-concave law, so that Gaussian and uniform-ball data have none.

    Tables: ``curve`` (y, rho, G and H of each law), ``laws`` (theta_2(0) p_n(0), whether the law is
    log-concave, critical points found for centres ``distance`` apart, the least rise of ln H, turns of H),
    ``pairs`` (pairs of rho that solve Eq. 56, the ratio a_-/a_+ each needs, and how well both quotients
    of Eq. 56 agree there).
    """

    title = "G(y), Eq. 58, and which data laws have critical points"
    reproduces = "JoMA Fig. 9"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"quick": {}, "paper": {}}

    dimensions: tuple[int, ...] = setting(
        (2, 10), "dimensions of the uniform balls", at_least=1, at_most=1000
    )
    degrees: tuple[float, ...] = setting(
        (1.5, 3.0), "degrees of freedom of the multivariate t laws", at_least=1.1, at_most=50.0
    )
    distance: float = setting(1.0, "distance of the two classes' centres", above=0.0, at_most=100.0)
    points: int = setting(400, "points of each curve", at_least=20, at_most=100_000)

"""Eq. 6 and the block: where the block of Eq. 1 rests, in which order it learns, how deep it bounces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class BlockFlow(Experiment):
    """The joint flow of weights and attention in the block itself, beside the corrected flow and Eq. 6.

    The data are mixtures of isotropic laws with a planted critical point mu of uniform attention
    (``joma.theory.drift.plant``), |mu| = 1, at a fixed bias; kappa sets the saliency max mu sqrt(kappa).
    ``rests`` trains the block on finite samples, ReLU and leaky gates (rounded over 1 or 2 % of |mu|, for the
    reason that ``cases`` gives); the other tables follow the
    population's flow (Lemma 2 in closed form) or the flow with C = I.

    Tables: ``rests`` (case, seed: where exp attention and uniform attention rest on the same sample, and how
    far the invariant drifts), ``courses`` (entropy in time of the block, the corrected flow, Eq. 6 and frozen
    attention), ``rates`` (final rates of the population's block), ``order`` (times at which components are
    half learned), ``costs`` (what C = I and leaving out mu mu' cost, from 0.6 mu), ``centres`` (how far mu is
    from a cluster's centre), ``law`` (dip and rebound of random mu, by the law and by the flow, C = I and
    v(0) = 0), ``phases`` (the same over saliency and spread, and ``boundary``, the chi_c above which the
    paper's own C bounces), ``boundary`` (how the entropy of random blocks of Gaussian data ends, on both
    sides of the closed form's rho_-), ``starts`` (what the linear drift costs, by the share of mu from which
    the flow starts).
    """

    title = "Where the block of Eq. 1 rests, and how deep its attention bounces"
    reproduces = "JoMA Eq. 6, Thm 3-4"
    cost: ClassVar[Mapping[str, str]] = {"quick": "2 min", "paper": "20 min"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "quick": {},
        "paper": {"cases": 50, "phase_points": 24, "blocks": 100},
    }

    cases: int = setting(8, "settings of the sampled block: law, gate, n, saliency, spread", at_least=2)
    seeds: int = setting(5, "samples drawn for each setting", at_least=5, at_most=1000)
    samples: int = setting(24_000, "size of each sample", at_least=1000, at_most=1_000_000)
    drawn: int = setting(200, "random mu on which the law of the bounce is tried", at_least=20)
    blocks: int = setting(4, "random blocks on which the boundary is tried", at_least=2)
    starts: tuple[float, ...] = setting(
        (0.8, 0.6, 0.3, 0.18, 0.1),
        "shares of mu from which the cost of the linear drift is measured",
        above=0.0,
        below=1.0,
    )
    phase_points: int = setting(9, "saliencies and spreads of the phase diagram", at_least=3, at_most=100)
    components: int = setting(10, "components of mu in the phase diagram", at_least=2, at_most=1000)

"""JoMA Fig. 5(b): which tokens of a latent tree a query associates with first, and do the rest follow?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

RUNS = {
    "eq6": "Eq. 6, μ from the tree",
    "relu-constant": "ReLU, constant g",
    "linear-constant": "linear, constant g",
    "relu-feedback": "ReLU, g = y − σ(h)",
    "linear-feedback": "linear, g = y − σ(h)",
}


@dataclass(frozen=True, kw_only=True)
class Fig5(Experiment):
    """The order in which a query m is associated with the tokens of its tree, and what the bounce adds.

    The exact distribution of HBLT(rho) below one class: contexts with and without token m, equally
    weighted. One hidden unit behind exp attention learns to tell them apart, by Eq. 2 (the flow, or with
    feedback steps of 0.01) from equal small weights: with g = +1 and -1 held constant (what Theorem 2
    assumes) and with the feedback of a logistic loss, g = y - sigma(h); with ReLU and, as the control,
    linear. Beside them stands what the paper argues with, Eq. 6, its mu proportional to the same contrast
    Delta_l = E[g x_l] = (P[y_l = 1 | y_m = 1] - P[y_l = 1 | y_m = 0]) / 2. The paper's text calls P(l | m)
    alone the signal; without contexts that lack m there would be nothing to tell apart.

    Attention is softmax(z) over the tokens. The null shuffles the tree: the tokens' heights are
    permuted over the tokens, in every way that is different.

    Nothing is drawn: the contexts are enumerated and the flows deterministic, so there are no seeds.

    Tables: ``curves`` (run, time, token, height, weight v and logit z), ``entropy`` (run, time),
    ``order`` (run, token: time at which v passes a common level), ``uniform`` (mu: where the weights of the
    ReLU block with feedback are, still in motion, at the end of their course under uniform attention),
    ``gradients`` (how far g is from what it was), ``rate_ratios`` (rebound of the ReLU block with feedback
    at other kappa = eta_z/eta_w, trained and by three laws:
    ``joma.experiments.joma_paper.fig5.rate_ratios``).
    """

    title = "Tokens under the query's lowest ancestor are associated first; do the others follow?"
    reproduces = "JoMA Fig. 5(b), Sec. 5"
    cost = {"paper": "40 s"}
    presets = {"quick": {}, "paper": {"moments": 1500, "time": 600.0}}

    depth: int = setting(4, "L, edges from the class label to a token", at_least=3, at_most=4)
    edge_correlation: float = setting(0.9, "rho", above=0.0, below=1.0)
    classes: int = setting(4, "D, classes of the label", at_least=2)
    time: float = setting(120.0, "end of the flows", above=0.0)
    moments: int = setting(300, "moments recorded", at_least=20)
    start: float = setting(0.02, "initial weight v of every token", above=0.0, at_most=0.5)
    level: float = setting(0.2, "weight at which a token counts as associated", above=0.0)
    rate_ratios: tuple[float, ...] = setting(
        (1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0, 100.0),
        "eta_z/eta_w, rising, of the table of the same name",
        above=0.0,
    )
    largest_target: float = setting(3.0, "largest mu of Eq. 6", above=0.0, at_most=4.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.start < self.level < self.largest_target:
            raise InputError(
                f"fig5: settings start = {self.start}, level = {self.level}, largest_target = "
                f"{self.largest_target}; level must lie between the other two."
            )
        if list(self.rate_ratios) != sorted(set(self.rate_ratios)) or not self.rate_ratios:
            raise InputError(f"fig5: setting rate_ratios = {self.rate_ratios!r} must be rising.")

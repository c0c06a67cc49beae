"""The draft "Multi-layer Analysis" (CDAG), measured in a network: do gradients pass the task down?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.base import Experiment
from joma.runs.job import setting

LEVELS = ("class", "upper latents", "lower latents")
VARIANTS = ("residual", "linear")
"""Networks beside the plain one: the second hidden layer adds to the first, or no nonlinearity."""


@dataclass(frozen=True, kw_only=True)
class Cdag(Experiment):
    """Correlations of latents with activations and back-propagated gradients, layer by layer in training.

    Tokens of HBLT(rho), L = 4, below D classes that each trigger a subtree of their own, enter a network of
    two equally wide hidden ReLU layers that learns the class (full batch, gradient ascent on the
    log-likelihood). At chosen steps every quadruple (node j, label alpha, child k, latent beta) is looked
    at: the draft's hypotheses corr(z_alpha, s_j), corr(z_beta, f_k), |corr(z_alpha, z_beta)| above a
    threshold, its conclusion corr(z_beta, g_jk) > 0, and the condition a + b + c < pi/2 on the three
    angles, which ``joma.theory.feature_graph.angle_sum`` proves sharp. The gradient passed down is
    computed with the draft's weight corr(f_k, s_j) and with the network's own. Correlations are cosines
    over the samples, latents centred. Nulls: the untrained network; latents permuted over the samples.

    Tables: ``quadruples`` (shares, per step and layer), ``alignment`` (mean over latents of the best
    correlation, per step, layer and level of the hierarchy), ``variants`` (both, of a network whose second
    hidden layer adds to the first, and of one without nonlinearity).
    """

    title = "Do back-propagated gradients hand lower latents down? The CDAG theorem inside a network"
    reproduces = "JoMA, appended draft (CDAG), Theorem 1 and its recursion"
    cost = {"paper": "6 min"}
    presets = {
        "quick": {},
        "paper": {"seeds": 8, "samples": 4000, "steps": 2000, "width": 48},
    }

    classes: int = setting(4, "D, classes of the label", at_least=2, at_most=8)
    edge_correlation: float = setting(0.9, "rho", above=0.0, below=1.0)
    samples: int = setting(1000, "sequences, all in every step", at_least=10)
    width: int = setting(24, "nodes of each hidden layer", at_least=2)
    steps: int = setting(400, "gradient steps", at_least=4)
    learning_rate: float = setting(0.5, "step size", above=0.0)
    measurements: int = setting(9, "moments measured, the first and the last included", at_least=3)
    seeds: int = setting(3, "networks and data sets", at_least=1)
    least_correlation: float = setting(0.1, "C1 = C2 = C3 of the draft's hypotheses", at_least=0.0, below=1.0)

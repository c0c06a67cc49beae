"""The forecast: the whole course of attention from the MLP weights' reduced flow, beside training itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.base import Experiment
from joma.runs.job import setting

DATA = ("smooth", "random")
EXACT: tuple[Literal["linear", "exp"], ...] = ("linear", "exp")
OTHER = ", another data set"
"""Behind a closure's name in the tables: its forecast was made for other data of the same kind."""
CLOSURES: tuple[Literal["signed", "corrected", "moving"], ...] = ("signed", "corrected", "moving")


@dataclass(frozen=True, kw_only=True)
class Forecast(Experiment):
    """Attention predicted without training it, for the data of Fig. 2 and all three kinds of attention.

    "We don't need to explicitly update self-attention" (JoMA Sec. 3): Theorem 1 closes the flow on the
    MLP weights. Here that reduced flow alone, given the data, predicts attention from start to end, and the
    full gradient flow of weights and logits says whether it was right. The data, the cross-entropy
    gradient, the sizes and T = 1/2 are those of Fig. 2, whose 2000 steps of 0.1 are 200 units of time. There
    the formula is given the *trained* weights at each moment; here it gets nothing.

    For softmax attention three closures compete: Eq. 18 ("signed"), the leading-order formula with the
    term that Eq. 17 drops ("corrected"), both around the initial mean attention, and the latter around the
    mean as it moves ("moving"). Null: the
    same closure's forecast for another data set of the same kind.

    Tables: ``curves`` (relative error and correlation of the logits, largest total variation distance of the
    attention, how far training moved it), ``courses`` (mean attention of each token, one seed).
    """

    title = "Attention forecast from the data by the reduced flow, against training"
    reproduces = "JoMA Sec. 3 (Theorem 1 put to use), on the data of Fig. 2"
    cost = {"paper": "2 min"}
    presets = {"quick": {}, "paper": {"seeds": 20}}

    seeds: int = setting(3, "data sets of each kind", at_least=1, at_most=1000)
    classes: int = setting(20, "classes, and MLP nodes", at_least=2, at_most=200)
    tokens: int = setting(
        20, "contextual tokens, half of them common to all classes", at_least=4, at_most=400
    )
    temperature: float = setting(0.5, "T of the attention logits", above=0.0)
    end: float = setting(200.0, "training time, linear and softmax attention", above=0.0)
    exp_end: float = setting(75.0, "training time, exp attention (which runs away)", above=0.0)
    moments: int = setting(101, "moments at which the two are compared", at_least=5, at_most=10_000)

"""What an alarm is worth: made faults, healthy runs beside them, and every rule on both."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Alarm(Experiment):
    """Character GPTs are trained; each is continued into made faults and into healthy runs.

    At every step loss, gradient norm, and per head or block normalised entropy, largest logit, root mean
    square and kurtosis of the residual stream are recorded. A run's label comes from its loss and that of its
    twin (the same network on the same batches, continued as it was) alone. Rules are pure functions of the
    recorded series: joma's alarm, with constants that were fixed before, and the rules of others, as
    published and with the threshold that the healthy runs of the *calibration* bases set. All are judged on
    other bases. One base counts once, whatever the number of its branches.

    The main setting is a GPT (width 64, two layers, four heads, 64 characters, AdamW, warm-up of 50 steps);
    the others (qk-norm, post-norm, a higher rate, the one-head post-norm decoder of the JoMA paper with and
    without qk-norm) are exploratory.

    Tables: ``series`` (one row a step, one column a statistic), ``runs`` (labels), ``alarms`` (first alarm of
    every rule in every run, for looks at every step, every 10 and every 50), ``rates`` and ``leads`` (over
    bases, with exact intervals), ``validity`` (armed steps, withdrawn alarms).
    """

    title = "Alarms on made faults and healthy runs: what is seen, how early, how often falsely"
    reproduces = "joma.Monitor's alarm"
    cost = {"quick": "3 min", "paper": "1.5 h"}
    presets = {
        "quick": {},
        "paper": {"corpus": "wikitext-2", "bases": 60, "other_bases": 16, "group": 10},
    }

    corpus: str = setting("world-english-bible", "corpus name, text file, or folder of texts")
    other_corpus: str = setting("python-reference", "the corpus of the change of text")
    bases: int = setting(4, "trained bases of the main setting, on each side", at_least=1, at_most=1000)
    other_bases: int = setting(0, "of each other setting, on each side", at_least=0, at_most=1000)
    group: int = setting(2, "bases that train together", at_least=1, at_most=100)
    base_steps: int = setting(600, "steps of a base", at_least=260, at_most=100_000)
    learning_rate: float = setting(3e-3, "AdamW's rate", above=0.0)
    batch: int = setting(8, "windows of 64 characters in a minibatch", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.other_bases > self.bases:
            raise InputError(
                f"alarm: other_bases = {self.other_bases} is more than bases = {self.bases}, among which "
                "their twins are; train as many bases of the main setting."
            )

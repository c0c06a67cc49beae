"""Who are the heavy hitters, and does training make them?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.shared.decoder_settings import TrainsDecoders, redefine
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(TrainsDecoders):
    """Decoders along their training: the smallest share of keys that receive 90 % of the mass, and which.

    A key's co-occurrence is the sum, over the queries that see it, of how much more often its token stands
    before the query's token in the training text than elsewhere (lift). Received mass is set against it by
    rank correlation, window by window, with position and frequency of the token taken out. The nulls: the
    untrained decoder, and the co-occurrences of shuffled tokens.

    Table ``curves``: seed, step, layer, head: ``hitter_share``, ``first_key_share``, ``cooccurrence`` and
    ``shuffled_cooccurrence`` (mean partial rank correlations).
    """

    title = "Heavy hitters along training, and the tokens that they are"
    reproduces = "H2O (Zhang et al. 2023) and the papers' sparse attention, with nulls"
    cost = {"quick": "2 min", "paper": "1 h"}
    presets = {
        "quick": {},
        "paper": {"corpus": "wikitext-2", "layers": (3,), "width": 200, "steps": 10_000, "seeds": 5},
    }

    vocabulary_size: int | None = redefine(500, "vocabulary_size")
    layers: tuple[int, ...] = setting((2,), "depth of the decoders that are trained", at_least=1)
    heads: int = setting(4, "attention heads", at_least=1)
    width: int = redefine(64, "width")
    steps: int = setting(800, "minibatches", at_least=1)
    measure_every: int = redefine(200, "measure_every")
    windows: int | None = redefine(40, "windows")
    learning_rate: float = redefine(3e-3, "learning_rate")
    seeds: int = redefine(3, "seeds", at_least=3)

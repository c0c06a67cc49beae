"""Who are the heavy hitters, and does training make them?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.shared.decoder_settings import SmallDecoders, redefine


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(SmallDecoders):
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

    measure_every: int = redefine(200, "measure_every")
    windows: int | None = redefine(40, "windows")

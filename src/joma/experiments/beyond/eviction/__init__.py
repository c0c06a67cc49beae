"""Which keys may leave the cache? Policies beside the best set that there is."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from joma.core.errors import InputError
from joma.experiments.shared.decoder_settings import SmallDecoders, redefine
from joma.runs.job import setting

MOST_SETS = 100_000
"""Sets that are all tried; above that the best set is not known."""


@dataclass(frozen=True, kw_only=True)
class Eviction(SmallDecoders):
    """Policies choose which positions of a context the cache keeps; the tokens after it tell what that costs.

    A decoder is trained on real text. Of a held-out context the cache keeps ``budget`` positions, the same in
    all layers and heads; the next ``continuation`` tokens see those and each other, through the model's own
    attention mask. The best set is found by trying all. A policy's regret is its mean loss minus that of the
    best set, in nats per token. Policies look at nothing behind the context. ``own keys`` keeps as many
    positions in every head, each head its own; ``own keys, by entropy`` gives heads of higher entropy more,
    the total being the same. Both can do better than the best common set, and stand apart (column ``set``).

    Tables: ``regrets`` (seed, trained or not, text, budget, policy, window: loss and regret), ``policies``
    (means with 95 % intervals over texts), ``correlations`` (rank correlation of each score with the exact
    change of the output, text by text; the same with the position taken out).
    """

    title = "Which keys may leave the cache? Eviction policies beside the best set"
    reproduces = "H2O, StreamingLLM, SnapKV and others on one footing; nothing in the papers"
    cost = {"quick": "2 min", "paper": "1 h"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "layers": (3,),
            "width": 128,
            "steps": 5000,
            "seeds": 5,
            "texts": 50,
            "budgets": (2, 4, 6),
        },
    }

    context: int = setting(18, "positions of the context", at_least=4, at_most=200)
    continuation: int = setting(64, "tokens after it, whose loss counts", at_least=1)
    budgets: tuple[int, ...] = setting((2, 4), "positions that the cache keeps", at_least=1)
    window: int = setting(4, "queries before the context's end that the windowed policy asks", at_least=1)
    texts: int = setting(8, "held-out texts of each seed", at_least=2)
    random_sets: int = setting(20, "sets that are drawn for the policy random", at_least=1)
    length: int = redefine(82, "length")
    steps: int = setting(1500, "minibatches", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.budgets) > self.context:
            raise InputError(
                f"eviction: a budget of {max(self.budgets)} keys exceeds the context's {self.context} "
                "positions; lower budgets, or raise context."
            )
        if self.window > self.context:
            raise InputError(
                f"eviction: window = {self.window} exceeds the context's {self.context} positions; lower it."
            )
        if self.context + self.continuation > self.length:
            raise InputError(
                f"eviction: context and continuation make {self.context + self.continuation} tokens, above "
                f"length = {self.length}, the longest that the decoder knows; raise length."
            )
        if (most := max(comb(self.context, k) for k in self.budgets)) > MOST_SETS:
            raise InputError(
                f"eviction: {most} sets of a context of {self.context}, above {MOST_SETS}; the best would "
                "not be known. Lower context, or take budgets nearer to its ends."
            )

    def measured_steps(self) -> list[int]:
        """The untrained decoder, which is the null, and the trained one."""
        return [0, self.steps]

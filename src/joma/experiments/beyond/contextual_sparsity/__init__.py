"""Does a token need heads and neurons of its own?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.shared.decoder_settings import SmallDecoders
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class ContextualSparsity(SmallDecoders):
    """Decoders, untrained and trained: the units that each token keeps within epsilon nats of its loss.

    ``joma.sparsity`` on held-out text: sets of each token's own, found by first-order change and bisection,
    verified in one pass, beside sets of the same sizes that are one for all tokens, drawn, or those of the
    largest outputs. How many are kept is an upper bound.

    Table ``sets``: seed, network, kind, choice: share kept, rise of the mean loss, share within epsilon.
    """

    title = "Contextual sparsity: sets of a token's own beside a static one"
    reproduces = "Deja Vu (Liu et al. 2023); JoMA's poster: attention dynamics leads to contextual sparsity"
    cost = {"quick": "2 min", "paper": "1 h"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "layers": (5,),
            "width": 200,
            "steps": 10_000,
            "seeds": 5,
            "tokens": 2000,
        },
    }

    epsilon: float = setting(0.1, "nats that a token's loss may rise by", above=0)
    tokens: int = setting(350, "held-out tokens that are read", at_least=10)

    def measured_steps(self) -> list[int]:
        """The untrained decoder, which is the null, and the trained one."""
        return [0, self.steps]

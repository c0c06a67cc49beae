"""JoMA Theorem 1 put to the test in training: does attention follow the squares of what its neurons see?"""

from __future__ import annotations

from dataclasses import dataclass

from joma.experiments.shared.decoder_settings import TrainsDecoders, redefine
from joma.runs.job import setting


@dataclass(frozen=True, kw_only=True)
class JointDynamics(TrainsDecoders):
    """The joint-dynamics index in the theory's own block and in decoders trained from scratch.

    Theorem 1 (exp attention, equal rates) gives the logits ``z_m(l) = 1/2 sum_k v_k(l)^2 + c``. The index is
    the correlation over the context tokens l, query by query, of log-attention with ``1/2 sum_k v_k(l)^2``,
    where in a real layer ``v_k(l) = w_k . (W_O^h W_V^h u_l)``, head by head
    (``joma.measures.joint_dynamics``).

    *Block flow*, the positive control: the population gradient flow of Eq. 2 with constant random gradients
    and zero logits at first, with exp and with softmax attention. With exp the theorem holds exactly: from
    zero weights the index must be 1; from random ones it approaches it, as ``c = -1/2 sum_k v_k(l)^2`` of
    the start fades beside what has grown.

    *Decoders*: the paper's (post-norm, softmax) learn to predict the next word of a real text, as in
    Fig. 6. At chosen steps the index is measured on held-out windows, with the first token left out, beside
    its nulls (the prediction shuffled over the tokens; the untrained decoders, whose index is farther from
    zero than shuffles within windows tell, since words recur in all of them), what is left of it when the
    size of the values ``|W_V^h u_l|`` or the position is held fixed, and the index of that size itself.
    """

    title = "Joint dynamics: does attention follow the neurons that it feeds, as Theorem 1 says?"
    reproduces = "JoMA Thm 1 (not in the paper)"
    cost = {"quick": "3 min", "paper": "hours"}
    presets = {
        "quick": {},
        "paper": {
            "corpus": "wikitext-2",
            "vocabulary_size": None,
            "layers": (1, 2, 5),
            "seeds": 3,
            "steps": 20_000,
            "learning_rate": 1e-4,
            "width": 200,
            "hidden": 200,
            "measure_every": 1000,
        },
    }

    corpus: str = redefine("world-english-bible", "corpus")
    layers: tuple[int, ...] = redefine((1, 3), "layers")
    seeds: int = redefine(3, "seeds")
    steps: int = setting(600, "minibatches", at_least=1)
    hidden: int = setting(128, "width of the MLP's hidden layer", at_least=1)
    heads: int = setting(2, "attention heads", at_least=1)
    length: int = redefine(35, "length", at_least=16)
    measure_every: int = setting(100, "steps between measurements (five times as dense at first)", at_least=1)
    draws: int = setting(8, "shuffles of the tokens for the null", at_least=2)
    block_tokens: int = setting(30, "contextual tokens M of the block flow", at_least=12)
    block_neurons: int = setting(10, "hidden neurons K of the block flow", at_least=1)
    block_runs: int = setting(8, "block flows, with data and gradients of their own", at_least=2)

    def measured_steps(self) -> list[int]:
        """Steps at which the decoder is measured."""
        early = range(0, min(2 * self.measure_every, self.steps), max(1, self.measure_every // 5))
        return sorted({*early, *range(0, self.steps + 1, self.measure_every), self.steps})

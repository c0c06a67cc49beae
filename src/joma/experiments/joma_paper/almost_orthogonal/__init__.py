"""JoMA Sec. 7: Theorem 1 when the embeddings are only almost orthogonal, against the dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from joma.experiments.base import Experiment
from joma.runs.job import setting

ATTENTION: tuple[Literal["linear", "exp", "softmax"], ...] = ("linear", "exp", "softmax")


@dataclass(frozen=True, kw_only=True)
class AlmostOrthogonal(Experiment):
    """Random unit vectors as embeddings, in fewer and in more dimensions than there are tokens.

    "Our JoMA framework (Theorem 1) will have additional epsilon-related terms and we leave the detailed
    analysis as one of our future work" (Sec. 7). The block is trained by gradient flow on random data with
    such embeddings, and the drift of Theorem 1's invariants is measured, token by token, with the
    first-order term of ``joma.theory.coherence`` put in, and of the one combination that should survive.
    The null is the same run with orthonormal embeddings. The coherence itself, and the dimension that it
    takes, are set against the paper's 8 epsilon^-2 log M.

    Tables: ``drift`` (relative to the largest sum_k v_k^2 / 2; the bound as a share used), ``coherence``
    (measured, predicted, Welch), ``dimensions`` (what a given epsilon takes).
    """

    title = "Theorem 1 with almost orthogonal embeddings, against the dimension"
    reproduces = "JoMA Sec. 7 (almost orthogonal embeddings)"
    cost = {"quick": "15 s", "paper": "10 min"}
    presets = {
        "quick": {},
        "paper": {"tokens": 100, "seeds": 20, "vocabulary": 3000},
    }

    tokens: int = setting(24, "contextual tokens M of the trained block", at_least=3, at_most=300)
    nodes: int = setting(3, "MLP nodes", at_least=1, at_most=100)
    samples: int = setting(40, "samples", at_least=2, at_most=10_000)
    dimensions: tuple[int, ...] = setting(
        (6, 12, 24, 48, 96, 192, 384, 768, 1536), "embedding dimensions", at_least=2, at_most=100_000
    )
    seeds: int = setting(6, "sets of embeddings at each dimension", at_least=1, at_most=1000)
    end: float = setting(40.0, "training time", above=0.0)
    vocabulary: int = setting(1000, "tokens whose coherence is measured without training", at_least=10)

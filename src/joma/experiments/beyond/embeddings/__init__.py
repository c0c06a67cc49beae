"""JoMA Sec. 7: Theorem 1 when embeddings learn too, and when logits are U W_Q W_K' U' instead of free."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

ATTENTION = ("linear", "exp", "softmax")
# How the logits are made, and whether the embeddings learn.
MODELS = {
    "free": ("free", False),
    "one matrix": ("matrix", False),
    "two matrices": ("factors", False),
    "free, embeddings learn": ("free", True),
    "two matrices, embeddings learn": ("factors", True),
}
LAWS = {
    "theorem 1": r"$z - \Sigma_k v_k^2/(2T)$ (Theorem 1)",
    "norm": r"$z - |u|^2/(2T)$",
    "balance": r"$W_K W_K^\top - W_Q W_Q^\top$",
    "block": r"$U U^\top + u_q u_q^\top - W^\top W$",
}


@dataclass(frozen=True, kw_only=True)
class Embeddings(Experiment):
    """The block of Eq. 1 with its attention and its embeddings parametrised as in a real transformer.

    The paper keeps the embeddings fixed and the logits free, and leaves the rest to future work (Sec. 7).
    Five models are trained by gradient flow (autograd, an adaptive Runge-Kutta method, float64) on the same
    data from orthonormal embeddings, cross-entropy on the hidden units, residual query included, all rates 1:

    - logits free; ``z = U' A u_q`` with one matrix; ``z = U' W_K' W_Q u_q`` with two; embeddings fixed;
    - free and two-matrix logits with the embeddings (the query's too) trained.

    Followed are Theorem 1's constants and what takes their place. Differentiating the loss gives:

    - one matrix: Theorem 1 as it stands, at the rate ``eta |u_q|^2``;
    - embeddings trained, logits free: ``z_l - |u_l|^2 / (2T)`` (exp) and ``z_l^2 - |u_l|^2`` (linear) are
      constant, token by token: attention goes with the *norm of the embedding*, not with the MLP's weights;
    - two matrices: ``W_K W_K' - W_Q W_Q'`` is constant, whatever else is trained;
    - embeddings trained: the matrix ``U U' + u_q u_q' - W' W - W_K' W_K - W_Q' W_Q`` is constant, for every
      kind of attention: what the embeddings gain, the matrices that read them gain together.

    Tables: ``drift`` (each constant's drift, relative to how far its terms moved), ``course`` (loss,
    motion of the logits, cosine of synonyms and of unrelated tokens).
    """

    title = "Theorem 1 with trained embeddings and with logits from W_Q, W_K"
    reproduces = "JoMA Sec. 7 (training embedding vectors; self-attention computed from embeddings)"
    cost = {"paper": "5 min"}
    presets = {
        "quick": {},
        "paper": {"tokens": 20, "dimension": 32, "classes": 10, "seeds": 5},
    }

    seeds: int = setting(3, "data sets and initial states", at_least=1, at_most=100)
    tokens: int = setting(8, "contextual tokens, in pairs of synonyms", at_least=4, at_most=200)
    classes: int = setting(4, "classes, and MLP nodes", at_least=2, at_most=100)
    dimension: int = setting(12, "embedding and key dimension, above tokens", at_least=5, at_most=1000)
    temperature: float = setting(1.0, "T of the attention logits", above=0.0)
    end: float = setting(15.0, "training time", above=0.0)
    moments: int = setting(61, "moments at which the constants are read", at_least=2, at_most=10_000)
    scale: float = setting(1.0, "entries of W_Q, W_K at the start: scale / sqrt(dimension)", above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension <= self.tokens:
            raise InputError(
                f"embeddings: setting dimension = {self.dimension} must exceed tokens = {self.tokens}, "
                "so that all embeddings and the query's start orthonormal."
            )
        if self.tokens % 2:
            raise InputError(
                f"embeddings: setting tokens = {self.tokens} must be even: synonyms come in pairs."
            )

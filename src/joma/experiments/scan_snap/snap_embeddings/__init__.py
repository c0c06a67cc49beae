"""What Scan&Snap's free Y and Z hide: the same data learned through embeddings and W_Q, W_K, W_V."""

from __future__ import annotations

from dataclasses import dataclass

from joma.core.errors import InputError
from joma.experiments.base import Experiment
from joma.runs.job import setting

FREE = "free Y and Z"
NULL = "uninformative"
ONE_MATRIX = "fixed U, one matrix"
# How Y and Z are made: (factored W_Q W_K, embeddings trained, as wide as there are tokens).
EMBEDDED = {
    ONE_MATRIX: (False, False, True),
    "fixed U, W_Q W_K": (True, False, True),
    "trained U, W_Q W_K": (True, True, True),
    "trained narrow U": (True, True, False),
}


@dataclass(frozen=True, kw_only=True)
class SnapEmbeddings(Experiment):
    """Theorem 2's fates and the independence of Z's rows when Z = U W_Q W_K' U' and Y = U W_V' U'.

    Scan&Snap trains Y and Z as independent variables. Five models that are the same function of Y and Z
    are trained by small steps of gradient descent in the limit of long sequences (float64), on graded
    distinct tokens and one common token, where Theorem 2 applies: free Y and Z; fixed orthonormal
    embeddings with A in place of W_Q W_K'; with W_Q and W_K; with trained embeddings; and with trained
    embeddings fewer than tokens. Measured, from the change of Z since the start: which tokens rise and
    fall; the share of the change that is in rows of tokens that are never last ("other rows") or, within
    the rows of last tokens, on tokens that never occur before them ("unseen tokens"). For free Y and Z
    both are zero exactly: what is not seen together never moves.

    The null: each of the models with W_Q and W_K once more where the context says nothing of the next
    token, because all next tokens share one distribution.

    Tables: ``course`` (loss, attention mass on the common token, shares, over time), ``tokens`` (change of
    each logit that Theorem 2 speaks of, at the end).
    """

    title = "the one-layer data with ordinary embeddings: what free Y and Z hide"
    reproduces = "Scan&Snap slides, reparametrisation (Y and Z as independent variables)"
    cost = {"paper": "3 min"}
    presets = {"quick": {}, "paper": {"distinct": 10, "seeds": 10, "end": 300.0, "width": 16}}
    last_tokens: int = setting(2, "number of last tokens", at_least=2)
    next_per_last: int = setting(2, "next tokens for each last token", at_least=1)
    distinct: int = setting(6, "distinct tokens of each next token", at_least=3)
    common_weight: float = setting(3.0, "weight of the common token; the distinct ones' is 0.1 to 1", above=0)
    width: int = setting(12, "size of the narrow embeddings", at_least=2)
    scale: float = setting(0.5**0.5, "entries of W_Q and W_K start at about scale / sqrt(d)", above=0)
    seeds: int = setting(3, "random starts", at_least=1)
    rate: float = setting(0.2, "step of gradient descent", above=0)
    end: float = setting(100.0, "training time: steps times rate", above=0)
    moments: int = setting(26, "moments that are recorded", at_least=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end / self.rate < self.moments - 1:
            raise InputError(
                f"snap_embeddings: end = {self.end} at rate = {self.rate} makes {self.end / self.rate:g} "
                f"steps, fewer than moments = {self.moments} to record; train longer or record less."
            )

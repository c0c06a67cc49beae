"""Entropy of attention rows from queries and keys, with an error estimate for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from joma.core.errors import InputError, JomaError, UnfinishedError
from joma.measures.attention.arguments import Arguments, check_arguments
from joma.measures.attention.blocked import blocked_moments
from joma.measures.attention.compiled import compiled_moments
from joma.measures.attention.flash import flash_moments
from joma.measures.attention.gradient import carry_gradient
from joma.measures.attention.scores import Scores
from joma.measures.attention.statistics import finish, wanted_moments

TOLERANCE = 5e-5
"""Nats. Float32 rows whose error estimate is larger are computed again in float64."""
BLOCK_SIZE = 1 << 20
"""Logits that the blocked form holds at once."""

_DENSE_KEYS = 64
_DENSE_ROWS = 16
_REDO_ALL = 0.5


@dataclass(frozen=True, repr=False)
class AttentionEntropy:
    """What ``attention_entropy`` returns; every tensor has the shape of the query without its width."""

    values: Mapping[str, Tensor]
    """Statistic -> value per row; NaN in rows that see no key. "entropy" is always among them."""
    errors: Mapping[str, Tensor]
    """Statistic -> estimate of its error per row, in its unit; measured errors stay below it."""
    visible: Tensor
    """Number of keys that each row sees."""
    rows: Tensor
    """(rows,) the query rows that were measured."""
    strata: Tensor
    """(rows,) how many rows of the text each measured row stands for: 1, or more in a sample."""
    route: str
    """"compiled", "flash", "blocked", or "dense" (the blocked form where a sequence is short)."""
    redone: int
    """Rows computed again in float64."""

    def __repr__(self) -> str:
        mean, error = float(self.entropy.double().nanmean()), float(self.error.double().nan_to_num(0).max())
        return (
            f"<AttentionEntropy: {', '.join(self.values)} of shape {tuple(self.entropy.shape)}, mean entropy "
            f"{mean:.4g} nats, each within {error:.1g} (estimated), route {self.route}>"
        )

    @property
    def entropy(self) -> Tensor:
        """Entropy per row, in nats."""
        return self.values["entropy"]

    @property
    def error(self) -> Tensor:
        """Estimate of the entropy's error per row, in nats."""
        return self.errors["entropy"]

    def __getitem__(self, statistic: str) -> Tensor:
        return self.values[statistic]

    def mean(self, statistic: str = "entropy") -> tuple[Tensor, Tensor]:
        """Mean of a statistic over the rows that see a key, and its standard error; shape (..., heads).

        Computed in float64. Without sampling the standard error is 0. With one row drawn from each
        stratum it is estimated from the differences of neighbouring rows, which is on the safe side
        where neighbours' strata differ (Wolter, Introduction to Variance Estimation, Sec. 8.2). It is NaN
        for fewer than two measured rows of a larger text.
        """
        value = self.values[statistic].double()
        known = ~value.isnan()
        weight = self.strata.double() * known
        total = weight.sum(-1)
        mean = (weight * value.nan_to_num(0.0)).sum(-1) / total
        count = known.sum(-1).double()
        both = known[..., 1:] & known[..., :-1]
        squares = value.diff(dim=-1).nan_to_num(0.0).square().sum(-1) / (2 * both.sum(-1))
        missing = (1 - count / total).clamp_min(0.0)
        error = (missing * squares / count).sqrt()
        return mean, torch.where(missing == 0, torch.zeros_like(error), error)


def attention_entropy(
    query: Tensor,
    key: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    window: int | tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    tolerance: float | None = None,
    statistics: Sequence[str] = ("entropy",),
    rows: float | Sequence[int] | Tensor | None = None,
    seed: int = 0,
    first_position: int | None = None,
    block_size: int = BLOCK_SIZE,
    differentiable: bool = False,
) -> AttentionEntropy:
    """Exact entropy of every row of softmax(softcap(scale Q K^T) + bias), in nats, without the matrix.

    Long texts on a CPU take a kernel of joma's own, compiled on first use (seconds, once per installation);
    without it, and on a GPU, H = lse - scale q . (P K) from one flash-attention call with the keys as its
    values. Short sequences take the dense formula; soft caps, biases, masks that are no intervals and some
    statistics take the same by blocks of rows. Everything is computed in float32 on keys centred per head
    (in float64 for float64 input); rows whose error estimate exceeds ``tolerance`` are computed again in
    float64.

    Queries, keys, mask, bias and sinks are torch tensors on one device, or NumPy arrays, which are read in
    place and measured on the CPU (NumPy has no bfloat16; other array types must be converted first).
    What comes back are torch tensors on the queries' device; float32, or float64 for float64 input. They are
    detached, unless ``differentiable`` is set.

    Args:
        query: (batch, heads, rows, width), or without batch, or without batch and heads; any strides;
            float16, bfloat16, float32 or float64, after rotary positions.
        key: (batch, key heads, keys, width); heads a multiple of key heads, key head g serving the g-th
            group of query heads, as in grouped-query attention.
        scale: factor of the products, by default 1 / sqrt(width).
        causal: a query sees keys up to its own position.
        first_position: where the first query stands among the keys; by default such that the last query
            stands at the last key, as in decoding with a cache. (PyTorch's ``is_causal`` means 0.)
        mask: broadcastable to (batch, heads, rows, keys): bool, True where a key is seen, or float, added
            to the scores: what lies 3e4 below 0 and below its row's largest hides a key (in a mask also a
            whole row of one such number), anything else is a bias. Rows that see no key get NaN.
        bias: added to the scores, broadcastable likewise (ALiBi, T5).
        softcap: c in c tanh(scale q . k / c), before bias and mask (Gemma 2).
        window: with ``causal``, the number of keys a query sees, its own included: 1, 2, ..., window,
            window. Or (before, after), the number to either side.
        sinks: (heads,) one learned logit per head that takes part in the softmax (GPT-OSS). All
            statistics then are of the distribution with the sink as one more outcome; for the
            distribution among the keys leave it away, or ask for "entropy_among_keys".
        tolerance: nats, by default 5e-5; infinity forbids the second computation.
        statistics: further names out of ``joma.measures.attention.statistics.STATISTICS``.
            "distance_spread" and Renyi entropies take the blocked form, at 2 to 3 times the cost, and so do
            "largest_probability", "largest_logit" and "min_entropy" where the compiled kernel is not used.
        rows: which query rows to measure: their indices, or a share in (0, 1): the text is cut into
            strata and one row drawn from each; ``mean`` then has a standard error.
        seed: of that draw.
        block_size: logits that the blocked form holds at once.
        differentiable: whether ``entropy`` carries the gradient to queries, keys, bias and sinks, so that it
            can be a term of a loss: dH/ds_j = -p_j (log p_j + H), computed by blocks of rows in the backward
            pass, in memory that grows with the text and not with its square. The gradient has no gradient of
            its own; masks, and the other statistics, carry none.

    Raises:
        InputError: shapes that do not fit, an unknown statistic, scores that are NaN or infinite (says
            in which head and row).
        UnfinishedError: out of memory.

    Examples:
        >>> query, key = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 8)
        >>> joma.attention_entropy(query, key, causal=True).entropy[0, 0]  # row i: ln(i + 1)
        tensor([0.0000, 0.6931, 1.0986, 1.3863])
    """
    try:
        with torch.no_grad():
            given = check_arguments(
                query, key, scale, causal, mask, bias, softcap, window, sinks, tolerance, statistics, rows,
                seed, first_position, block_size,
            )  # fmt: skip
            found = _measure(given, TOLERANCE if tolerance is None else tolerance)
        if differentiable:
            entropy = carry_gradient(found.entropy, given, query, key, bias, sinks)
            found = replace(found, values={**found.values, "entropy": entropy})
        return found
    except (RuntimeError, MemoryError) as problem:
        if isinstance(problem, RuntimeError) and not _out_of_memory(problem):
            raise
        raise UnfinishedError(
            f"attention_entropy: out of memory with {tuple(query.shape)} queries on {tuple(key.shape)} keys; "
            f"lower block_size (now {block_size} logits at once), or measure fewer samples or rows at a time."
        ) from problem


def _out_of_memory(problem: RuntimeError) -> bool:
    return isinstance(problem, torch.OutOfMemoryError) or "can't allocate memory" in str(problem)


def _measure(given: Arguments, tolerance: float) -> AttentionEntropy:
    scores = given.scores
    exact = scores.query.dtype == torch.float64
    values, errors, route = _in_precision(given, scores, torch.float64 if exact else torch.float32)
    error = errors["entropy"]
    seen = scores.visible.counts.expand(error.shape) > 0
    redone = 0
    if not exact:
        doubtful = seen & ~(error <= tolerance)
        share = int(doubtful.sum()) / max(1, int(seen.sum()))
        if tolerance < math.inf or not bool(error[seen].isfinite().all()):
            redone = int(doubtful.sum())
            if share > _REDO_ALL:
                values, errors = _round_to(*_in_precision(given, scores, torch.float64)[:2], error.dtype)
            elif redone:
                _redo(given, doubtful, values, errors)
    error = errors["entropy"]
    if not given.by_blocks and bool((seen & (values["entropy"] < -error)).any()):
        # A kernel that is off by more than it may be does not serve the other rows either.
        return _measure(replace(given, by_blocks=True), tolerance)
    _check_values(given, values["entropy"], error, seen)
    # Rounding apart, 0 <= H <= log n; no error is larger than that range either.
    most = (scores.visible.counts + (given.sinks is not None)).clamp_min(1).to(error.dtype).log()
    for name in {"entropy", "entropy_among_keys"} & set(values):
        values[name] = values[name].clamp(min=0.0).minimum(most)
        errors[name] = errors[name].minimum(most + torch.finfo(error.dtype).eps)
    shape = given.shape
    return AttentionEntropy(
        values={name: value.reshape(shape) for name, value in values.items()},
        errors={name: value.reshape(shape) for name, value in errors.items()},
        visible=scores.visible.counts.expand(error.shape).reshape(shape),
        rows=given.rows,
        strata=given.strata,
        route=route,
        redone=redone,
    )


def _in_precision(
    given: Arguments, scores: Scores, dtype: torch.dtype, heads: slice = slice(None)
) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """Statistics, error estimates and route with everything in ``dtype``."""
    scores = scores.centre_keys(dtype)
    need = wanted_moments(given.statistics)
    short = scores.key.shape[2] <= _DENSE_KEYS or scores.query.shape[2] <= _DENSE_ROWS
    moments, route = None, "dense"
    if not short and not given.by_blocks:
        moments, route = compiled_moments(scores, need), "compiled"
        if moments is None:
            moments, route = flash_moments(scores, need), "flash"
    if moments is None:
        moments = blocked_moments(scores, need, given.block_size)
        route = "dense" if short else "blocked"
    sinks = None if given.sinks is None else given.sinks[heads]
    return *finish(scores, moments, given.statistics, sinks), route


def _redo(given: Arguments, doubtful: Tensor, values: dict[str, Tensor], errors: dict[str, Tensor]) -> None:
    """Compute the doubtful rows again in float64, head by head, and write them in place."""
    for sample, head in doubtful.any(-1).nonzero().tolist():
        rows = doubtful[sample, head].nonzero().squeeze(-1)
        one = (slice(sample, sample + 1), slice(head, head + 1))
        exact = _in_precision(given, given.scores.take(*one, rows), torch.float64, one[1])
        rounded = _round_to(*exact[:2], values["entropy"].dtype)
        for old, again in zip((values, errors), rounded, strict=True):
            for name, value in again.items():
                old[name][sample, head, rows] = value[0, 0]


def _round_to(
    values: dict[str, Tensor], errors: dict[str, Tensor], dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """In a shorter dtype, whose rounding counts as error."""
    epsilon = torch.finfo(dtype).eps
    errors = {name: (error + epsilon * values[name].abs()).to(dtype) for name, error in errors.items()}
    return {name: value.to(dtype) for name, value in values.items()}, errors


def _check_values(given: Arguments, entropy: Tensor, error: Tensor, seen: Tensor) -> None:
    bad = seen & ~(entropy.isfinite() & error.isfinite())
    if bool(bad.any()):
        sample, head, row = bad.nonzero()[0].tolist()
        query = given.scores.query[sample, head, row]
        holder = "the products overflow" if bool(query.isfinite().all()) else "the query there is not finite"
        key = given.scores.key[sample, head // given.scores.group]
        if not bool(key.isfinite().all()):
            place = int((~key.isfinite().all(-1)).nonzero()[0])
            holder = f"key {place} is not finite"
        raise InputError(
            f"attention_entropy: the scores of batch {sample}, head {head}, row {int(given.rows[row])} are "
            f"NaN or infinite ({holder}); {int(bad.any(-1).sum())} heads are affected. Look for an overflow "
            "in the layers before, or mask what is padding."
        )
    below = seen & (entropy < -error)
    if bool(below.any()):
        sample, head, row = below.nonzero()[0].tolist()
        raise JomaError(
            f"attention_entropy: entropy {float(entropy[sample, head, row]):.3g} in batch {sample}, head "
            f"{head}, row {int(given.rows[row])} is negative beyond its error estimate "
            f"{float(error[sample, head, row]):.1g}, by blocks too: this device multiplies wrongly."
        )

"""Whether attention follows the neurons it feeds, as JoMA Theorem 1 says: the joint-dynamics index.

JoMA folds W_V into the embeddings. In a real layer the neurons of the MLP see context token l, through head
h, as ``v_k(l) = w_k . (W_O^h W_V^h u_l)``: ``u_l`` is what attention reads of token l, ``w_k`` a row of the
lower MLP with the gain of the norm before it. Theorem 1 (exp attention, equal rates, temperature 1) gives the
logits ``z_m(l) = 1/2 sum_k v_k(l)^2 + c``. The index is the correlation over the context tokens l, query by
query, of the log-attention with ``1/2 sum_k v_k(l)^2``: +1 where the theorem holds with c = 0. The bias of
the values, which adds the same to v_k(l) for every l, is left out, as the theory has none; what the norm
divides by depends on the query alone and changes no correlation.

The sum over neurons is a quadratic form in the head's value, with one small Gram matrix per head
(``neuron_gram``), so its cost does not depend on the number of neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.row_correlations import (
    KeyFeatures,
    KeyRanks,
    RowMoments,
    Scores,
    join_moments,
    rank_correlations,
    row_moments,
)

Sink = Literal["in", "out"]

MINIMUM_KEYS = 10
"""Queries that see fewer keys, the sink left out, have no value: a handful says nothing."""
CONTROLS: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "position": ("position", "log_distance"),
    "value_norm": ("log_value_norm",),
    "position and value_norm": ("position", "log_distance", "log_value_norm"),
}
"""What a partial correlation is given: the key's position and the logarithm of its distance from the query
(recency), and the logarithm of the value's squared norm ``|W_V^h u_l|^2``."""

_KEY_CONTROLS = ("position", "log_value_norm")
_LOGITS_AT_ONCE = 2**20
_BLOCKS = 8
"""At least so many blocks of queries: of a causal block, no key behind its last query is computed."""
_FEW = 16
_ROUNDING = 1e-5
"""Sums of squares computed in float32 that differ by no more than this share are equal."""


class Variant(NamedTuple):
    """Which correlation with log-attention a number is."""

    metric: str
    """``index`` (Theorem 1's prediction), ``null`` (the same, shuffled over the tokens), ``value_norm``
    (``|W_V^h u_l|^2`` in its place), ``input_norm`` (``|u_l|^2``), ``recency`` (minus the log of the
    distance)."""
    scale: str
    """``linear`` (Pearson), ``log`` (Pearson with the predictor's logarithm), ``rank`` (Spearman)."""
    given: str
    """A key of ``CONTROLS``: what is held fixed."""
    sink: Sink
    """Whether the first key is among the tokens."""
    draw: int = 0
    """Number of the shuffle, of a null."""


def neuron_gram(
    lower: Tensor,
    output: Tensor,
    heads: int,
    *,
    gain: Tensor | None = None,
    centres: bool = False,
    output_gain: Tensor | None = None,
    output_centres: bool = False,
) -> Tensor:
    """``W_O^h' W' W W_O^h`` for every head: ``sum_k v_k(l)^2`` is its quadratic form in ``W_V^h u_l``.

    Args:
        lower: (neurons, width), the lower MLP's matrix (of a gated MLP, the gate's).
        output: (width, heads * head width), attention's output matrix, head by head.
        heads: their number.
        gain: (width,), that of the norm before the MLP; None: no norm.
        centres: whether that norm subtracts the mean (LayerNorm).
        output_gain: (width,), that of a norm on attention's output, before it is added; None: no norm.
        output_centres: whether that norm subtracts the mean.

    Returns:
        (heads, head width, head width), float64.

    Raises:
        InputError: shapes that do not fit, or a value that is not finite.
    """
    width = lower.shape[-1]
    if (
        lower.ndim != 2
        or output.ndim != 2
        or output.shape[0] != width
        or heads < 1
        or output.shape[1] % heads
    ):
        raise InputError(
            f"neuron_gram: lower {tuple(lower.shape)} must be (neurons, width) and output "
            f"{tuple(output.shape)} (width, {heads} heads * head width)."
        )
    for name, tensor in (("gain", gain), ("output_gain", output_gain)):
        if tensor is not None and tensor.shape != (width,):
            raise InputError(f"neuron_gram: {name} {tuple(tensor.shape)} must be ({width},).")
    # As exact as the weights themselves; sums over the neurons are in float64.
    kind = torch.promote_types(torch.promote_types(lower.dtype, output.dtype), torch.float32)
    written = _through_norm(output.to(kind), output_gain, output_centres)
    read = lower.to(kind)
    if gain is not None:
        read = read * gain.to(read)
    if centres:
        read = read - read.mean(1, keepdim=True)
    by_head = torch.unflatten((read @ written).double(), 1, (heads, -1)).movedim(1, 0)
    gram: Tensor = by_head.mT @ by_head
    if not bool(gram.isfinite().all()):
        raise InputError("neuron_gram: a weight is not finite, or too large; give finite weights.")
    return gram


def _through_norm(output: Tensor, gain: Tensor | None, centres: bool) -> Tensor:
    if centres:
        output = output - output.mean(0, keepdim=True)
    return output if gain is None else output * gain.to(output)[:, None]


def joint_dynamics_prediction(values: Tensor, gram: Tensor) -> Tensor:
    """``1/2 sum_k v_k(l)^2`` of every token l, (batch, heads, tokens), float64.

    Args:
        values: ``W_V^h u_l``, (batch, key-value heads, tokens, head width); heads share them in groups.
        gram: (heads, head width, head width), of ``neuron_gram``.

    Raises:
        InputError: shapes that do not fit.
    """
    heads, size = gram.shape[0], gram.shape[-1]
    if values.ndim != 4 or values.shape[-1] != size or heads % values.shape[1]:
        raise InputError(
            f"joint_dynamics_prediction: values {tuple(values.shape)} must be (batch, key-value heads, "
            f"tokens, {size}), and their heads divide {heads}."
        )
    x = values.double().repeat_interleave(heads // values.shape[1], 1)
    return ((x @ gram.to(x.device)) * x).sum(-1).clamp_min(0.0) / 2


@torch.no_grad()
def joint_dynamics_index(
    scores: Tensor | Callable[[slice], Scores],
    prediction: Tensor,
    *,
    value_norm: Tensor | None = None,
    input_norm: Tensor | None = None,
    queries: int | None = None,
    first: Tensor | None = None,
    draws: int = 8,
    seed: int = 0,
    shuffles: Tensor | None = None,
    rank_every: int = 1,
    minimum_keys: int = MINIMUM_KEYS,
) -> dict[Variant, Tensor]:
    """The correlations of each query's log-attention with the prediction, its confounds and its null.

    Log-attention is the logits up to a number of the query, which no correlation sees. Computed in float64
    by blocks of queries; no (queries, keys) matrix is kept.

    Args:
        scores: the logits as the softmax sees them (after rotary positions, scale, soft cap and bias), -inf
            where a key is hidden: (batch, heads, queries, keys), or a function of a slice of the queries
            that gives those rows (``joma.measures.row_correlations.Scores``). Self attention: query i is
            token i.
        prediction: ``1/2 sum_k v_k(l)^2``, (batch, heads, keys), not negative.
        value_norm: ``|W_V^h u_l|^2``, (batch, heads or 1, keys); the metric ``value_norm`` and two of the
            partial correlations need it.
        input_norm: ``|u_l|^2``, likewise; the metric ``input_norm`` needs it.
        queries: their number, where ``scores`` is a function; by default that of the keys.
        first: (batch,) int64, the first token of each sample, its sink; by default 0 (padding on the left
            moves it).
        draws: shuffles of the tokens (without the sink, where the sink is left out) for the null; each is
            one permutation of a sequence's tokens for all its queries and heads.
        seed: of the shuffles.
        shuffles: (draws, batch, keys), numbers in whose order the tokens are put; in place of draws and seed.
        rank_every: rank correlations, which need sorting, are computed for every so many queries; 0: none.
        minimum_keys: queries that see fewer keys, the first left out, have NaN.

    Returns:
        (batch, heads, queries) for every ``Variant``; NaN where a query sees too few keys, or where
        the attention or the predictor does not vary over them (an untrained layer with zero weights).

    Raises:
        InputError: shapes that do not fit, a prediction or norm that is negative or not finite, scores that
            are NaN or infinite.
    """
    if prediction.ndim != 3 or 0 in prediction.shape:
        raise InputError(
            f"joint_dynamics_index: prediction {tuple(prediction.shape)} must be (batch, heads, keys)."
        )
    if draws < 0 or rank_every < 0 or minimum_keys < 3:
        raise InputError(
            f"joint_dynamics_index: draws = {draws} and rank_every = {rank_every} must be at least 0, "
            f"minimum_keys = {minimum_keys} at least 3."
        )
    batch, heads, keys = prediction.shape
    rows = keys if queries is None else queries
    if isinstance(scores, Tensor):
        if scores.ndim != 4 or (*scores.shape[:2], scores.shape[3]) != prediction.shape:
            raise InputError(
                f"joint_dynamics_index: scores {tuple(scores.shape)} must be (batch, heads, queries, keys) "
                f"for a prediction {tuple(prediction.shape)}."
            )
        rows = scores.shape[2]
        whole = scores
        scores = lambda some: Scores.of(whole[:, :, some])  # noqa: E731  (a matrix that is there is cut in rows)
    sink = torch.zeros(batch, dtype=torch.int64) if first is None else first
    if sink.shape != (batch,) or bool(((sink < 0) | (sink >= keys)).any()):
        raise InputError(
            f"joint_dynamics_index: first {tuple(sink.shape)} must be a key (0 to {keys - 1}) of each of "
            f"{batch} samples."
        )
    sink = sink.to(prediction.device)
    if shuffles is None:
        generator = torch.Generator().manual_seed(seed)
        shuffles = torch.rand(draws, batch, keys, generator=generator, dtype=torch.float64)
    features = _features(prediction, value_norm, input_norm, sink, shuffles.to(prediction.device))
    controls = [name for name in _KEY_CONTROLS if name in features]
    partial = ["prediction", "log_prediction", *controls]
    compared = KeyFeatures(features, heads, sink, controls, partial)
    ranked = KeyRanks(features["prediction"])
    step = max(1, min(_LOGITS_AT_ONCE // (batch * heads * keys), max(_FEW, -(-rows // _BLOCKS))))
    latest = int(sink.max())
    blocks = []
    ranks: list[tuple[Tensor, Tensor]] = []
    waiting: list[Scores] = []
    for begin in range(0, rows, step):
        some = slice(begin, min(begin + step, rows))
        block = scores(some).up_to(latest + 1)
        largest = torch.maximum(block.logits.amax(-1), -block.logits.amin(-1))
        if not bool(largest.isfinite().all()):
            raise InputError(
                f"joint_dynamics_index: a score of queries {some.start} to {some.stop - 1} is NaN or "
                "infinite."
            )
        if rank_every:
            waiting.append(Scores(*(part[:, :, -begin % rank_every :: rank_every] for part in block)))
            # The few rows of many blocks are ranked in one go.
            held = sum(one.logits.shape[2] for one in waiting)
            if some.stop == rows or held * batch * heads * keys >= _LOGITS_AT_ONCE:
                ranks.append(rank_correlations(Scores.join(waiting), sink, ranked))
                waiting = []
        resolution = torch.finfo(largest.dtype).eps * largest.double()
        blocks.append(_Block(row_moments(block, some, compared), resolution))
    return dict(_correlations(blocks, ranks, minimum_keys, rank_every))


def _features(
    prediction: Tensor,
    value_norm: Tensor | None,
    input_norm: Tensor | None,
    first: Tensor,
    shuffles: Tensor,
) -> dict[str, Tensor]:
    """Variables of the keys, (batch, heads or 1, keys), float64, median 0 and of about unit size."""
    batch, _, keys = prediction.shape
    device = prediction.device
    given = {"prediction": prediction, "value_norm": value_norm, "input_norm": input_norm}
    raw: dict[str, Tensor] = {}
    for name, values in given.items():
        if values is None:
            continue
        if values.ndim != 3 or values.shape[0] != batch or values.shape[2] != keys:
            raise InputError(
                f"joint_dynamics_index: {name} {tuple(values.shape)} must be (batch, heads or 1, keys), as "
                f"the prediction {tuple(prediction.shape)}."
            )
        if not bool(values.isfinite().all()) or bool((values < 0).any()):
            raise InputError(
                f"joint_dynamics_index: {name} holds a value that is negative or not finite; it is a sum of "
                "squares (padding: give zeros)."
            )
        raw[name] = _but_for_rounding(values.double())
        # Zeros (padding; a token without any effect) have no logarithm: below all others, not -inf.
        positive = raw[name] > 0
        least = torch.where(positive, raw[name], torch.inf).amin(-1, keepdim=True)
        raw[f"log_{name}"] = torch.where(positive, raw[name], least).log()
    raw["position"] = torch.arange(keys, dtype=torch.float64, device=device).expand(batch, 1, keys)
    features = {name: _standardise(values) for name, values in raw.items()}
    is_sink = torch.arange(keys, device=device) == first[:, None]
    # The sink, where it is left out, stays itself. Those of one kind stand side by side.
    for sink, fixed in (("out", is_sink), ("in", torch.zeros_like(is_sink))):
        for draw, lots in enumerate(shuffles):
            index = _shuffle_rows(lots, fixed)[:, None].expand(-1, prediction.shape[1], -1)
            for prefix in ("", "log_"):
                features[f"{prefix}null_{sink}_{draw}"] = features[f"{prefix}prediction"].gather(-1, index)
    return features


def _but_for_rounding(values: Tensor) -> Tensor:
    """One number where the positive ones are equal but for rounding: RMSNorm's outputs have one length."""
    largest = values.amax(-1, keepdim=True)
    least = torch.where(values > 0, values, torch.inf).amin(-1, keepdim=True)
    equal = largest - least <= _ROUNDING * largest
    return torch.where(equal, torch.ones_like(values), values)


def _shuffle_rows(lots: Tensor, fixed: Tensor) -> Tensor:
    """A permutation of each row's places (batch, keys) by the order of its lots, those ``fixed`` left."""
    order = torch.arange(lots.shape[1], device=lots.device).repeat(len(lots), 1)
    for row, stays in zip(range(len(lots)), fixed, strict=True):
        places = (~stays).nonzero()[:, 0]
        order[row, places] = places[lots[row, places].argsort()]
    return order


def _standardise(values: Tensor) -> Tensor:
    """Median 0 and median distance from it 1: a sink far off leaves the other tokens their digits."""
    centred = values - values.median(-1, keepdim=True).values
    typical = centred.abs().median(-1, keepdim=True).values
    typical = torch.where(typical > 0, typical, centred.abs().amax(-1, keepdim=True))
    return centred / torch.where(typical > 0, typical, 1.0)


class _Block(NamedTuple):
    """Some rows: their moments, and the resolution of their logits."""

    moments: RowMoments
    resolution: Tensor


def _correlations(
    blocks: Sequence[_Block], ranked: Sequence[tuple[Tensor, Tensor]], minimum_keys: int, rank_every: int
) -> Iterator[tuple[Variant, Tensor]]:
    without = join_moments([block.moments for block in blocks])
    resolution = torch.cat([block.resolution for block in blocks], -1)
    enough = without.count >= minimum_keys
    sinks: tuple[tuple[Sink, RowMoments], ...] = (("out", without), ("in", without.with_first_key()))
    for which, (sink, moments) in enumerate(sinks):
        # Logits that differ by no more than the rounding of their dtype do not vary.
        varies = moments.attention > moments.count * (8 * resolution).square()
        hopeless = ~(enough & varies)
        other = f"null_{'in' if sink == 'out' else 'out'}_"
        plain = moments.correlations([name for name in moments.names if other not in name])
        found = {
            given: moments.partial_correlations(("prediction", "log_prediction"), controls)
            for given, controls in CONTROLS.items()
            if all(control == "log_distance" or control in plain for control in controls)
        }
        recency = moments.partial_correlations(("log_distance",), ())["log_distance"]
        values = {
            **{
                Variant(metric, scale, given, sink, draw): (plain if given == "nothing" else found[given])[
                    name
                ]
                for scale, prefix in (("linear", ""), ("log", "log_"))
                for metric, given, draw, name in _comparisons(plain, found, sink, prefix)
            },
            Variant("recency", "log", "nothing", sink): -recency,
        }
        if rank_every:
            ranks = torch.full_like(resolution, torch.nan)
            ranks[..., ::rank_every] = torch.cat([both[which] for both in ranked], -1)
            values[Variant("index", "rank", "nothing", sink)] = ranks
        for variant, correlation in values.items():
            yield variant, correlation.masked_fill(hopeless, torch.nan)


def _comparisons(
    features: Iterable[str], givens: Iterable[str], sink: Sink, prefix: str
) -> Iterator[tuple[str, str, int, str]]:
    """What is correlated with log-attention: metric, what is held fixed, draw, and name of the feature."""
    for given in givens:
        yield "index", given, 0, f"{prefix}prediction"
    start = f"{prefix}null_{sink}_"
    for name in features:
        if name in (f"{prefix}value_norm", f"{prefix}input_norm"):
            yield name.removeprefix("log_"), "nothing", 0, name
        elif name.startswith(start):
            yield "null", "nothing", int(name[len(start) :]), name

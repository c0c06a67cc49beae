"""Received attention: who is looked at, and what leaving a key out would change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.attention.arguments import Arguments, check_arguments
from joma.measures.attention.entropy import BLOCK_SIZE
from joma.measures.attention.received.blocks import BlockSums
from joma.measures.attention.received.compiled import compiled_key_sums
from joma.measures.attention.received.sums import Sums
from joma.measures.attention.scores import Scores

TOLERANCE = 1e-5
"""Relative. Heads in which the estimate of a key's error is larger are computed again in float64."""
_SMALLEST_SQUARE = 1e-30
"""Sums of squares below this lack the digits that float32 loses near its smallest number, 1e-38."""
RECEIVED = {
    "received_mass": ("queries", "sum over the queries of p_ij"),
    "received_mean": ("", "mean of p_ij over the queries that can see key j"),
    "received_maximum": ("", "largest p_ij over the queries"),
    "value_mass": ("", "root mean square over the queries of |p_ij v_j|"),
    "removal_effect": ("", "root mean square over the queries of |o_i^(-j) - o_i|"),
}
"""name in tables -> (unit, definition)"""

_NEEDS_VALUES = ("value_mass", "removal_effect")


@dataclass(frozen=True, repr=False)
class ReceivedAttention:
    """What ``received_attention`` returns; every tensor is (batch, query heads, keys), as the query was."""

    values: Mapping[str, Tensor]
    """"mass", "mean", "maximum" and, with values, "value_mass" and "removal_effect"."""
    errors: Mapping[str, Tensor]
    """The same names -> estimate of the absolute error of each number."""
    visible: Tensor
    """(batch, query heads, keys): how many counted queries can see each key."""
    queries: Tensor
    """(batch, query heads): how many queries count."""
    redone: int = 0
    """Heads computed again in float64."""

    def __repr__(self) -> str:
        return f"<ReceivedAttention: {', '.join(self.values)} of shape {tuple(self.mass.shape)}>"

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values and name in _NEEDS_VALUES:
            raise InputError(f"received_attention: {name} was not measured; call it with value.")
        return self.values[name]

    @property
    def mass(self) -> Tensor:
        """Sum over the queries of the key's probability; its sum over the keys is the number of queries."""
        return self["mass"]

    @property
    def mean(self) -> Tensor:
        """Mean of the key's probability over the queries that can see it; NaN where none can."""
        return self["mean"]

    @property
    def maximum(self) -> Tensor:
        """Largest probability that any query gives to the key."""
        return self["maximum"]

    @property
    def value_mass(self) -> Tensor:
        """Root mean square over the queries of |p_ij v_j|.

        Raises:
            InputError: without values.
        """
        return self["value_mass"]

    @property
    def removal_effect(self) -> Tensor:
        """Root mean square over the queries of the change of the output when the key is left out.

        Raises:
            InputError: without values.
        """
        return self["removal_effect"]


@torch.no_grad()
def received_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    window: int | tuple[int, int] | None = None,
    sinks: Tensor | None = None,
    output_weight: Tensor | None = None,
    tolerance: float | None = None,
    rows: float | Sequence[int] | Tensor | None = None,
    counted: Tensor | None = None,
    seed: int = 0,
    first_position: int | None = None,
    block_size: int = BLOCK_SIZE,
) -> ReceivedAttention:
    """Attention that each key receives, and the exact change of the output without it, in O(keys) memory.

    With p = softmax(softcap(scale Q K^T) + bias) and o_i = sum_j p_ij v_j, leaving key j out of row i changes
    o_i by p_ij / (1 - p_ij) (o_i - v_j). A learned sink stays where it is. Where p_ij > 1/2, 1 - p_ij and the
    output without the key are summed from the other keys. Rows that see no key count nowhere.

    Long texts on a CPU take a kernel of joma's own, where that of ``attention_entropy`` serves; else rows are
    taken by blocks. Both compute in float32 on keys centred per head (float64 for float64 input); heads in
    which the estimate of a key's relative error exceeds ``tolerance`` are computed again in float64.

    Args:
        query: as in ``attention_entropy``, like key, scale, causal, mask, bias, softcap, window, sinks,
            first_position and block_size.
        key: (batch, key heads, keys, width).
        value: (batch, key heads, keys, value width), or without batch, as the key. None: no value_mass and
            no removal_effect.
        output_weight: (model width, heads * value width), the weight of the linear layer behind the
            attention: removal_effect is then measured behind it.
        tolerance: relative, by default 1e-5; infinity forbids the second computation.
        rows: which query rows to measure: indices, or a share in (0, 1), one row from each stratum, which
            then stands for all of its rows.
        counted: (batch, rows) or (rows,) bool: False for queries that are padding, which count nowhere.
        seed: of the draw of rows.

    Returns:
        ``mass``, ``mean``, ``maximum``, ``value_mass`` and ``removal_effect`` of shape (batch, query heads,
        keys), float32 or for float64 input float64; ``errors`` of each. A query that cannot see the key, or
        sees no other, counts 0 in ``removal_effect``.

    Raises:
        InputError: shapes that do not fit, scores or values that are NaN or infinite.

    Examples:
        >>> query, key = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
        >>> value = torch.tensor([[[[1.0], [3.0]]]])
        >>> found = joma.received_attention(query, key, value, causal=True)
        >>> found.mass  # the first query sees one key, the second both
        tensor([[[1.5000, 0.5000]]])
        >>> found.removal_effect  # the second query's output is 2; without a key 3 or 1
        tensor([[[0.7071, 0.7071]]])
    """
    try:
        given = check_arguments(
            query, key, scale, causal, mask, bias, softcap, window, sinks, tolerance, (), rows, seed,
            first_position, block_size,
        )  # fmt: skip
    except InputError as problem:
        said = str(problem).replace("attention_entropy:", "received_attention:", 1)
        raise InputError(said) from problem
    scores = given.scores
    v = None if value is None else _check_value(value, torch.as_tensor(key), scores)
    if output_weight is not None:
        if v is None:
            raise InputError("received_attention: output_weight without value; give the values it weighs.")
        output_weight = _check_output(output_weight, v, scores)
    weight = _weights(given, counted)
    redo = TOLERANCE if tolerance is None else float(tolerance)
    exact = torch.float64 if scores.query.dtype == torch.float64 else torch.float32
    sums = _in_precision(given, scores, v, output_weight, weight, exact)
    redone = 0
    if exact == torch.float32 and redo < math.inf:
        redone = _redo(given, v, output_weight, weight, sums, redo)
    return _finish(given, scores, sums, v, weight, exact, redone)


def _check_value(value: Tensor, key: Tensor, scores: Scores) -> Tensor:
    try:
        value = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(
            f"received_attention: value is a {type(value).__name__}; give a tensor."
        ) from problem
    if value.dim() != key.dim() or value.shape[:-1] != key.shape[:-1] or not value.shape[-1]:
        raise InputError(
            f"received_attention: value {tuple(value.shape)} and key {tuple(key.shape)} must agree in all "
            "but the width: (batch, key heads, keys, value width)."
        )
    if not value.is_floating_point() or value.device != scores.key.device:
        raise InputError(
            f"received_attention: value is {value.dtype} on {value.device}; give floats "
            f"on {scores.key.device}."
        )
    value = value.detach()[(None,) * (4 - value.dim())]
    if not bool(value.isfinite().all()):  # padding may hold anything
        value = value.masked_fill(~_used_keys(scores)[:, None, :, None], 0.0)
        if not bool(value.isfinite().all()):
            place = (~value.isfinite()).nonzero()[0].tolist()
            raise InputError(
                f"received_attention: the value of key {place[2]} in batch {place[0]}, head {place[1]} is "
                "NaN or infinite; look for an overflow in the layers before, or mask what is padding."
            )
    return value


def _used_keys(scores: Scores) -> Tensor:
    """(batch or 1, keys) bool: keys that some row of the sample sees."""
    visible = scores.visible
    if visible.mask is not None:
        return visible.mask.any(1).any(1)
    place = torch.arange(scores.key.shape[2], device=scores.key.device)
    return (place >= visible.begin[:, None]) & (place < visible.end[:, None])


def _check_output(weight: Tensor, value: Tensor, scores: Scores) -> Tensor:
    """(heads, value width or less, value width): of a head's output it keeps the length behind the layer."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        raise InputError(
            f"received_attention: output_weight is a {type(weight).__name__}; give a float tensor."
        )
    heads, width = scores.query.shape[1], value.shape[-1]
    if weight.dim() != 2 or weight.shape[1] != heads * width:
        raise InputError(
            f"received_attention: output_weight {tuple(weight.shape)} must be (model width, "
            f"{heads * width}): {heads} heads of value width {width}."
        )
    by_head = torch.unflatten(weight.detach().to(value.device, torch.float64), 1, (heads, width))
    by_head = by_head.transpose(0, 1)
    if not bool(by_head.isfinite().all()):
        raise InputError("received_attention: output_weight holds NaN or infinity.")
    triangle: Tensor = torch.linalg.qr(by_head, mode="r").R
    return triangle


def _weights(given: Arguments, counted: Tensor | None) -> Tensor:
    """(batch or 1, rows): how many rows of the text each measured row stands for."""
    weight = given.strata[None].to(torch.float64)
    if counted is None:
        return weight
    batch = given.scores.query.shape[0]
    if not isinstance(counted, Tensor) or counted.dtype != torch.bool or counted.dim() not in (1, 2):
        raise InputError("received_attention: counted must be a boolean tensor (batch, rows) or (rows,).")
    counted = counted[(None,) * (2 - counted.dim())].to(weight.device)
    length = counted.shape[1]
    if counted.shape[0] not in (1, batch) or length <= int(given.rows.max()):
        raise InputError(
            f"received_attention: counted {tuple(counted.shape)} does not fit a batch of {batch} and a query "
            f"of {int(given.rows.max()) + 1} rows or more."
        )
    return weight * counted[:, given.rows]


def _in_precision(
    given: Arguments,
    scores: Scores,
    value: Tensor | None,
    output: Tensor | None,
    weight: Tensor,
    dtype: torch.dtype,
    heads: slice = slice(None),
) -> Sums:
    """The sums with everything in ``dtype``."""
    sinks = None if given.sinks is None else given.sinks[heads].double()
    if value is not None:
        value = value.double() if output is not None or dtype == torch.float64 else value.float()
        if sinks is None:  # no difference between outputs knows of the values' mean
            used = _used_keys(scores)[:, None, :, None].to(value.dtype)
            value = value - (value * used).sum(2, keepdim=True) / used.sum(2, keepdim=True).clamp_min(1)
        if output is not None:
            grouped = torch.unflatten(output[heads], 0, (-1, scores.group))
            value = torch.einsum("bgkw,gmow->bgmko", value, grouped).flatten(1, 2)
        value = value.to(dtype)
    scores = scores.centre_keys(dtype)
    found = compiled_key_sums(scores, sinks, weight, value)
    return found or BlockSums(scores, sinks, weight, value, given.block_size).sums()


def _redo(
    given: Arguments,
    value: Tensor | None,
    output: Tensor | None,
    weight: Tensor,
    sums: Sums,
    tolerance: float,
) -> int:
    """Compute heads of doubtful keys again in float64, in place; returns how many."""
    doubtful = (sums.mass_error > tolerance * sums.mass) & (sums.mass > 0)
    # The square's relative error is twice that of its root.
    doubtful |= (sums.removal_error > 2 * tolerance * sums.removal) & (sums.removal > 0)
    if value is not None:  # the squares of small probabilities leave float32's range
        doubtful |= (sums.square < _SMALLEST_SQUARE) & (sums.mass > 0)
    doubtful |= ~(sums.mass.isfinite() & sums.mass_error.isfinite() & sums.removal.isfinite())
    group = given.scores.group
    key_heads = torch.unflatten(doubtful.any(-1), 1, (-1, group)).any(-1)
    for sample, key_head in key_heads.nonzero().tolist():
        one = slice(sample, sample + 1)
        heads = slice(key_head * group, (key_head + 1) * group)
        own = None if value is None else value[one, key_head : key_head + 1]
        part = given.scores.take(one, heads, slice(None))
        weights = weight[one] if len(weight) > 1 else weight
        exact = _in_precision(given, part, own, output, weights, torch.float64, heads)
        for name in vars(sums):
            getattr(sums, name)[one, heads] = getattr(exact, name)
    return int(key_heads.sum()) * group


def _finish(
    given: Arguments,
    scores: Scores,
    sums: Sums,
    value: Tensor | None,
    weight: Tensor,
    dtype: torch.dtype,
    redone: int,
) -> ReceivedAttention:
    _check_sums(sums, scores)
    shape = sums.mass.shape
    queries = (weight[:, None] * (scores.visible.counts > 0)).sum(-1).expand(shape[:2])
    visible = _seen_by(scores, weight).expand(shape)
    relative = sums.mass_error / sums.mass.clamp_min(1e-300)
    values = {
        "mass": sums.mass,
        "mean": (sums.mass / visible).masked_fill(visible == 0, torch.nan),
        "maximum": sums.maximum,
    }
    errors = {
        "mass": sums.mass_error,
        "mean": (sums.mass_error / visible).masked_fill(visible == 0, torch.nan),
        "maximum": torch.minimum(relative * sums.maximum, sums.mass_error) + torch.finfo(dtype).tiny,
    }
    if value is not None:
        number = queries.clamp_min(1)[..., None]
        length = torch.linalg.vector_norm(value.double(), dim=-1).repeat_interleave(scores.group, 1)
        values["value_mass"] = (sums.square / number).sqrt() * length
        # Besides the probabilities' error, that of their squares, of the sum and of its root.
        further = 2 * torch.finfo(dtype).eps
        errors["value_mass"] = values["value_mass"] * (relative.clamp_max(1.0) + further)
        values["removal_effect"] = (sums.removal / number).sqrt()
        doubt = sums.removal_error / number
        root = values["removal_effect"]
        errors["removal_effect"] = torch.minimum(doubt.sqrt(), doubt / root.clamp_min(1e-300))
    final = (*given.shape[:-1], shape[-1])
    rounding = torch.finfo(dtype)
    errors = {
        name: error + rounding.eps * values[name].abs() + rounding.tiny for name, error in errors.items()
    }
    return ReceivedAttention(
        {name: x.to(dtype).reshape(final) for name, x in values.items()},
        {name: x.to(dtype).reshape(final) for name, x in errors.items()},
        visible.reshape(final),
        queries.reshape(final[:-1]),
        redone,
    )


def _seen_by(scores: Scores, weight: Tensor) -> Tensor:
    """(batch or 1, heads or 1, keys): how many counted queries see each key."""
    visible = scores.visible
    if visible.mask is not None:
        mask = visible.mask
        return torch.stack(
            [
                torch.einsum(
                    "r,hrk->hk", weight[min(b, len(weight) - 1)], mask[min(b, len(mask) - 1)].double()
                )
                for b in range(max(len(weight), len(mask)))
            ]
        )
    size = max(len(weight), len(visible.first))
    steps = weight.new_zeros(size, scores.key.shape[2] + 1)
    amount = weight.expand(size, -1).contiguous()
    steps.scatter_add_(1, visible.first.expand(size, -1), amount)
    steps.scatter_add_(1, visible.stop.expand(size, -1), -amount)
    return steps.cumsum(-1)[:, None, :-1].round()


def _check_sums(sums: Sums, scores: Scores) -> None:
    bad = ~(sums.mass.isfinite() & sums.removal.isfinite())
    if bool(bad.any()):
        sample, head, key = bad.nonzero()[0].tolist()
        raise InputError(
            f"received_attention: what key {key} of batch {sample}, head {head} receives is NaN or infinite; "
            "look for an overflow in the layers before, or mask what is padding."
        )

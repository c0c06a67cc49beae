"""The gradient of attention's entropy, by blocks of rows: memory that grows with the text, not its square.

With p = softmax(s) over the keys (and the sink) of a row and H its entropy, dH/ds_j = -p_j (log p_j + H).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from joma.measures.attention.arguments import Arguments
from joma.measures.attention.scores import Scores
from joma.measures.attention.visible_keys import take

_LOGITS = 1 << 19
"""Of a block of rows: few enough for a cache, enough to hide the cost of its calls."""


def carry_gradient(
    entropy: Tensor, given: Arguments, query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> Tensor:
    """The measured entropy as a function of what it was measured of.

    Args:
        entropy: (..., rows) as ``attention_entropy`` has measured it.
        given: what it was measured of, checked.
        query: with its history, as are
        key: (..., keys, width),
        bias: that of the scores or None,
        sinks: (heads,) or None.
    """
    found: Tensor = _Entropy.apply(entropy, given, query, key, bias, sinks)  # type: ignore[no-untyped-call]
    return found


class _Entropy(torch.autograd.Function):
    """Forward: what was measured. Backward: the formula above, row block by row block."""

    @staticmethod
    def forward(
        ctx: Any,
        entropy: Tensor,
        given: Arguments,
        query: Tensor,
        key: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        ctx.given = given
        ctx.save_for_backward(query, key, bias, sinks)  # a later change in place is noticed
        return entropy.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, bias, sinks = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        with torch.autocast(gradient.device.type, enabled=False):
            found = _gradients(ctx.given, gradient, query, bias if needs[2] else None)
        wanted = (found.query, found.key, found.bias, found.sinks)
        shapes = (query, key, bias, sinks)
        return (
            None,
            None,
            *(
                one.reshape(like.shape).to(like.dtype) if need and one is not None else None
                for need, one, like in zip(needs, wanted, shapes, strict=True)
            ),
        )


@dataclass
class _Gradients:
    """Sums over the blocks, in the dtype of the computation; the bias and the sinks where there are any."""

    query: Tensor
    key: Tensor
    bias: Tensor | None
    sinks: Tensor | None


def _gradients(given: Arguments, gradient: Tensor, query: Tensor, bias: Tensor | None) -> _Gradients:
    """The gradients of sum gradient * entropy."""
    exact = torch.float64 if given.scores.query.dtype == torch.float64 else torch.float32
    scores = given.scores.centre_keys(exact)
    batch, heads, rows, _ = scores.query.shape
    seen = scores.visible.counts.expand(batch, heads, rows) > 0
    weight = gradient.to(exact).reshape(batch, heads, rows).masked_fill(~seen, 0.0)
    length = query.shape[-2]
    sums = _Gradients(
        query=scores.query.new_zeros(batch, heads, length, scores.query.shape[-1]),
        key=torch.zeros_like(scores.key),
        bias=None if bias is None else scores.query.new_zeros((1,) * (4 - bias.dim()) + tuple(bias.shape)),
        sinks=None if given.sinks is None else scores.query.new_zeros(heads),
    )
    group = scores.group
    step = max(1, min(given.block_size, _LOGITS) // (group * scores.key.shape[2]))
    for sample in range(batch):
        for head in range(0, heads, group):
            one = (slice(sample, sample + 1), slice(head, head + group))
            for begin in range(0, rows, step):
                some = slice(begin, min(begin + step, rows))
                _add_block(sums, scores, given, weight, (*one, some))
    return sums


def _add_block(
    sums: _Gradients,
    scores: Scores,
    given: Arguments,
    weight: Tensor,
    block: tuple[slice, slice, slice],
) -> None:
    sample, heads, some = block
    part = scores.take(sample, heads, some)
    keys = slice(int(part.visible.first.min()), int(part.visible.stop.max()))
    if keys.start >= keys.stop:
        return
    key = part.key[0, 0, keys]
    query = part.query[0] * part.scale
    products = part.capped_products(keys)
    slope = None if part.softcap is None else 1 - (products[0, 0] / part.softcap).square()
    logits = part.bias_and_hide(products, keys)[0, 0]
    sink = None
    top = logits.amax(-1, keepdim=True).clamp_min(-1e30)  # a row that sees nothing
    if given.sinks is not None:
        # The sink stands beside the keys as they were given: centring took scale q . centre from each.
        offset = part.offset()
        sink = given.sinks[heads].to(logits.dtype)[:, None] - (offset[0] if isinstance(offset, Tensor) else 0)
        sink = sink[..., None]
        top = torch.maximum(top, sink)
    logits -= top
    p = logits.exp()
    total = p.sum(-1, keepdim=True)
    if sink is not None:
        sink = sink - top
        total += sink.exp()
    p /= total.clamp_(min=torch.finfo(total.dtype).tiny)
    # -inf, of a hidden key, times its probability, 0, is 0.
    logits = logits.sub_(total.log()).clamp_min_(-1e30)
    entropy = -(p * logits).sum(-1, keepdim=True)
    own = weight[sample, heads, some][0][..., None]
    if sink is not None:
        log_mass = sink - total.log()
        entropy -= log_mass.exp() * log_mass
        moved = -log_mass.exp() * (log_mass + entropy) * own
        assert sums.sinks is not None
        sums.sinks[heads] += moved.sum((-2, -1))
    moved = logits.add_(entropy).mul_(p).mul_(-own)
    if sums.bias is not None:
        _add_bias(sums.bias, moved, block, given.rows, keys)
    if slope is not None:
        moved = moved * slope
    rows = given.rows[some]
    pulled = torch.matmul(moved, key)
    if sink is not None and part.centre is not None:  # else the changes of a row's scores sum to 0
        pulled += moved.sum(-1, keepdim=True) * part.centre[0, 0]
    sums.query[sample.start, heads, rows] += pulled * part.scale
    sums.key[sample.start, heads.start // scores.group, keys] += moved.flatten(0, 1).T @ query.flatten(0, 1)


def _add_bias(
    sums: Tensor, moved: Tensor, block: tuple[slice, slice, slice], rows: Tensor, keys: slice
) -> None:
    """Add a block, summed over what the bias does not depend on."""
    sample, heads, some = block
    moved = moved[None]
    for axis, size in enumerate(sums.shape):
        if size == 1 and moved.shape[axis] > 1:
            moved = moved.sum(axis, keepdim=True)
    part = take(sums, sample, heads, slice(None))
    part = part[..., keys] if part.shape[-1] > 1 else part
    if part.shape[2] > 1:
        part.index_add_(2, rows[some], moved)
    else:
        part += moved

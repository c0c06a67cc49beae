"""Scales of quantised weights: under which names they stand, and how they lie over the weight."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from joma.checkpoints.families.sizes import Config
from joma.core.errors import InputError
from joma.core.files import Json

Shape = tuple[int, ...]

_QUANTISED = re.compile(r"F8|F6_|F4|[IU]\d|BOOL|float8|float4|u?int|bool|C64|complex")
_SCALE = re.compile(r"[._](?:weight[._])?(?:scales?(?:_inv|_weight)?|inv_scale|qscale)")
"""What may follow a module's or a parameter's name: ``.weight_scale_inv``, ``.scale_weight``, ``_scale_inv``,
..."""
_ROW_SCALES = ".SCB"  # bitsandbytes' LLM.int8: rows were divided by their largest entry and multiplied by 127
_ZERO_POINT = re.compile(r"[._](?:weight[._])?zero_?points?")
_OF_SOMETHING_ELSE = re.compile(
    r"(?<![a-z])(?:inputs?|acts?|activations?|outputs?|relative)(?![a-z])|[._][kvq]_(?:cache_)?scale|bias"
)
_SUSPICIOUS = re.compile(
    r"scale|zero|quant|absmax|SCB|amax|codebook|g_idx|packed|qweight|_blocks|_nested|lut|centroids",
    re.IGNORECASE,
)
_BLOCK = 128  # of DeepSeek-V3 and its descendants, which need not say so
_SMALL_BLOCKS = (16, 32, 64, 256)


def is_quantised(dtype: str) -> bool:
    """Whether a stored type is not the weight's own numbers: eight bits and fewer, or integers."""
    return _QUANTISED.match(dtype) is not None


def companion(rest: str) -> str:
    """What stands beside a weight under a name that goes on with ``rest``: ``scale``, ``rows``, ``zero``, ...

    ``strange`` is something that speaks of quantisation and is not understood; nothing: not the weight's.
    """
    if of_something_else(rest):
        return ""
    if rest == _ROW_SCALES:
        return "rows"
    if _SCALE.fullmatch(rest):
        return "scale"
    if _ZERO_POINT.fullmatch(rest):
        return "zero"
    return "strange" if _SUSPICIOUS.search(rest) else ""


def of_something_else(rest: str) -> bool:
    """Whether a name that goes on with ``rest`` is that of a bias, or of scales of activations."""
    return _OF_SOMETHING_ELSE.search(rest) is not None


def block_sizes(config: Config | None) -> tuple[int, ...] | None:
    """(rows, columns) of the blocks that share a scale, as a quantised model's configuration states them."""
    found = (config or {}).get("quantization_config")
    if not isinstance(found, Mapping):
        return None
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    inner = first.get("weights") if isinstance(first, Mapping) else None
    for source in (found, inner if isinstance(inner, Mapping) else {}):
        for key in ("weight_block_size", "block_structure", "block_size"):
            if (sizes := _pair(source.get(key))) is not None:
                return sizes
        if isinstance(size := source.get("group_size"), int) and size > 0:
            return (1, size)
    return None


def _pair(value: Json) -> tuple[int, ...] | None:
    if isinstance(value, str):
        value = [int(part) if part.isdigit() else 0 for part in value.split("x")]
    if isinstance(value, list | tuple) and len(value) == 2:
        sizes = tuple(size for size in value if isinstance(size, int) and size > 0)
        return sizes if len(sizes) == 2 else None
    return None


def spread(scale: Shape, weight: Shape, blocks: tuple[int, ...] | None) -> tuple[Shape, Shape]:
    """How a scale lies over a weight: the shape to view it in, and along each axis how often an entry is
    repeated.

    One for all; one per row, per column or per stacked matrix; one per block, whose last ones may be cut off.

    Args:
        scale: its shape.
        weight: the shape of the weight, (..., rows, columns).
        blocks: (rows, columns) of a block where the configuration states it.

    Raises:
        InputError: shapes that do not fit, or fit in several ways; the message is half a sentence.
    """
    if all(side == 1 for side in scale):
        return (1,) * len(weight), (1,) * len(weight)
    if len(scale) == len(weight):
        return scale, _repeats(scale, weight, blocks)
    ways = {
        view
        for view in (
            (*scale, *[1] * (len(weight) - len(scale))),  # per row, or per stacked matrix
            (*scale[:-1], 1, scale[-1]) if len(scale) >= 2 else (),  # per column of each stacked matrix
        )
        if len(view) == len(weight) and all(s in (1, w) for s, w in zip(view, weight, strict=True))
    }
    if len(ways) != 1:
        kind = "in several ways" if ways else "in no way that is known"
        raise InputError(f"its scale of shape {scale} fits {weight} {kind}")
    return ways.pop(), (1,) * len(weight)


def _repeats(scale: Shape, weight: Shape, blocks: tuple[int, ...] | None) -> Shape:
    """The size of a block along each axis."""
    axes = [i for i, (s, w) in enumerate(zip(scale, weight, strict=True)) if s not in (1, w)]
    sizes = [1] * len(weight)
    if any(i < len(weight) - 2 for i in axes):
        raise InputError(f"its scale of shape {scale} does not fit {weight}")
    stated = {} if blocks is None else dict(zip((len(weight) - 2, len(weight) - 1), blocks, strict=True))
    for i in axes:
        if i in stated:
            candidates = [stated[i]]
        else:
            # All axes at once: blocks are squares where nothing is said.
            candidates = [
                b for b in (_BLOCK, *_SMALL_BLOCKS) if all(-(-weight[j] // b) == scale[j] for j in axes)
            ]
            candidates = candidates[:1] if _BLOCK in candidates[:1] else candidates
        fitting = [b for b in candidates if -(-weight[i] // b) == scale[i]]
        if len(fitting) != 1:
            raise InputError(
                f"the size of the blocks of its scale of shape {scale} over {weight} is not known"
                if i not in stated
                else f"its scale of shape {scale} does not fit {weight} in blocks of {stated[i]}"
            )
        sizes[i] = fitting[0]
    return tuple(sizes)


def apply_scale(
    values: Tensor, scale: Tensor, blocks: tuple[int, ...] | None, zero: Tensor | None = None
) -> Tensor:
    """``(values - zero) * scale`` in float32, the scale spread as ``spread`` tells."""
    shape = tuple(values.shape)
    weight = values.float()
    if zero is not None:
        weight = weight - _over(zero.float(), shape, blocks)
    return weight.mul_(_over(scale.float(), shape, blocks))


def _over(scale: Tensor, shape: Shape, blocks: tuple[int, ...] | None) -> Tensor:
    view, repeats = spread(tuple(scale.shape), shape, blocks)
    scale = scale.reshape(view)
    for axis, times in enumerate(repeats):
        if times > 1:
            scale = scale.repeat_interleave(times, dim=axis).narrow(axis, 0, shape[axis])
    return scale


_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1 = torch.cat([_E2M1, -_E2M1])


def decode_mxfp4(blocks: Tensor, exponents: Tensor) -> Tensor:
    """MXFP4 (OCP Microscaling Formats 1.0) to float32: (..., groups, 16) bytes and (..., groups) exponents.

    Each byte holds two values, the first in its lower half; a group of 32 shares a power of two, biased by
    127.
    """
    pairs = torch.stack([_E2M1[(blocks & 15).int()], _E2M1[(blocks >> 4).int()]], dim=-1)
    values = torch.ldexp(pairs.flatten(-2), exponents.int()[..., None] - 127)
    return values.flatten(-2)

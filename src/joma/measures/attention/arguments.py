"""From what a caller gives to the scores that are measured: shapes, masks, windows, rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.attention.scores import Scores
from joma.measures.attention.statistics import check_names, needs_positions
from joma.measures.attention.visible_keys import VisibleKeys, additive, take, visible_keys

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Arguments:
    """Checked arguments of ``attention_entropy``."""

    scores: Scores
    """In the caller's dtype, with four dimensions, of the chosen rows."""
    sinks: Tensor | None
    statistics: tuple[str, ...]
    rows: Tensor
    strata: Tensor
    block_size: int
    shape: torch.Size
    """Of the results."""
    by_blocks: bool = False
    """Whether no attention kernel is used."""


def check_arguments(
    query: Tensor,
    key: Tensor,
    scale: float | None,
    causal: bool,
    mask: Tensor | None,
    bias: Tensor | None,
    softcap: float | None,
    window: int | tuple[int, int] | None,
    sinks: Tensor | None,
    tolerance: float | None,
    statistics: Sequence[str],
    rows: float | Sequence[int] | Tensor | None,
    seed: int,
    first_position: int | None,
    block_size: int,
) -> Arguments:
    """Check and join the arguments; see ``joma.attention_entropy`` for what they mean.

    Raises:
        InputError: as there.
    """
    query, key = _tensor("query", query), _tensor("key", key)
    mask, bias, sinks = (
        None if given is None else _tensor(name, given)
        for name, given in (("mask", mask), ("bias", bias), ("sinks", sinks))
    )
    names = check_names(statistics, sinks=sinks is not None)
    _check_tensors(query, key)
    leading = query.shape[:-2]
    query, key = query.detach()[(None,) * (4 - query.dim())], key.detach()[(None,) * (4 - key.dim())]
    batch, heads, length, width = query.shape
    keys = key.shape[2]
    scale = width**-0.5 if scale is None else _number("scale", scale)
    for name, value, most in (("softcap", softcap, math.inf), ("tolerance", tolerance, None)):
        if value is not None and not 0 < _number(name, value) != most:
            raise InputError(f"attention_entropy: {name} = {value!r} must be a positive number.")
    if not isinstance(causal, bool | np.bool_):
        raise InputError(f"attention_entropy: causal = {causal!r:.80} is neither True nor False.")
    block_size, seed = _index("block_size", block_size), _index("seed", seed)
    if not math.isfinite(scale) or block_size < 1:
        raise InputError(
            f"attention_entropy: scale = {scale} must be finite, and block_size = {block_size} positive."
        )
    if sinks is not None and (sinks.numel() != heads or not bool(sinks.isfinite().all())):
        raise InputError(
            f"attention_entropy: sinks {tuple(sinks.shape)} must be a finite logit for each of {heads} heads."
        )
    start = _first_position(first_position, length, keys, causal or window is not None, names)
    positions = torch.arange(length, device=query.device) + start
    chosen, strata = _choose(rows, length, seed, query.device)
    shape = torch.Size((batch, heads, length, keys))
    keeps, added = _masks(mask, bias, shape)
    visible = visible_keys(positions, keys, causal=causal, window=_window(window, causal), mask=keeps)
    if rows is not None:
        everything = (slice(None), slice(None), chosen)
        query, positions = query[:, :, chosen], positions[chosen]
        visible = visible.take(*everything)
        added = None if added is None else take(added, *everything)
    scores = Scores(query, _without_padding(key, visible), scale, visible, positions, softcap, added)
    return Arguments(
        scores, None if sinks is None else sinks.detach().flatten(), names, chosen, strata, block_size,
        torch.Size((*leading, len(chosen))),
    )  # fmt: skip


def _tensor(name: str, given: Any) -> Tensor:
    """A tensor as it is; a NumPy array as the tensor on its memory."""
    try:
        if isinstance(given, Tensor | np.ndarray):
            return torch.as_tensor(given)
        kind = type(given).__name__
    except (TypeError, ValueError):  # strings and objects; strides that PyTorch has not
        array = np.asarray(given)
        kind = f"NumPy array of {array.dtype} with strides {array.strides}"
    raise InputError(f"attention_entropy: {name} is a {kind}; give a tensor or a NumPy array of numbers.")


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"attention_entropy: {name} = {value!r:.80} must be a number.") from None


def _index(name: str, value: SupportsIndex) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"attention_entropy: {name} = {value!r:.80} must be a whole number.") from None


def _check_tensors(query: Tensor, key: Tensor) -> None:
    if query.dim() not in (2, 3, 4) or key.dim() != query.dim():
        raise InputError(
            f"attention_entropy: query {tuple(query.shape)} and key {tuple(key.shape)} must both be (batch, "
            "heads, length, width), or both without batch, or both (length, width)."
        )
    if query.dtype not in _FLOATS or key.dtype not in _FLOATS or query.device != key.device:
        raise InputError(
            f"attention_entropy: query is {query.dtype} on {query.device}, key {key.dtype} on {key.device}; "
            "both must be float16, bfloat16, float32 or float64, on one device."
        )
    if 0 in query.shape or 0 in key.shape:
        raise InputError(f"attention_entropy: query {tuple(query.shape)} or key {tuple(key.shape)} is empty.")
    if query.shape[-1] != key.shape[-1]:
        raise InputError(
            f"attention_entropy: query has width {query.shape[-1]}, key {key.shape[-1]}; they must be equal."
        )
    if query.dim() > 2 and query.shape[-3] % key.shape[-3]:
        raise InputError(
            f"attention_entropy: {query.shape[-3]} query heads are no multiple of {key.shape[-3]} key heads; "
            "the order is (batch, heads, length, width)."
        )
    if query.dim() == 4 and len(query) != len(key):
        raise InputError(f"attention_entropy: query has batch {len(query)}, key {len(key)}.")


def _first_position(given: int | None, length: int, keys: int, matters: bool, names: Sequence[str]) -> int:
    if given is not None:
        return _index("first_position", given)
    reason = "causal or window" if matters else needs_positions(names)
    if length > keys and reason:
        raise InputError(
            f"attention_entropy: {length} queries on {keys} keys with {reason}: give first_position, where "
            "the first query stands among the keys."
        )
    return keys - length


def _window(window: int | tuple[int, int] | None, causal: bool) -> tuple[int, int] | None:
    if window is None:
        return None
    if isinstance(window, int):
        if not causal:
            raise InputError(
                f"attention_entropy: window = {window} without causal says no side; give (before, after)."
            )
        window = (window - 1, 0)
    try:
        before, after = (operator.index(side) for side in window)
    except (TypeError, ValueError):
        before = after = -1
    if min(before, after) < 0:
        raise InputError(
            f"attention_entropy: window = {window} must be a positive number of keys, or (before, after)."
        )
    return before, after


def _masks(
    mask: Tensor | None, bias: Tensor | None, shape: torch.Size
) -> tuple[Tensor | None, Tensor | None]:
    """What is seen (bool) and what is added, both with four dimensions, from mask and bias."""
    keeps: Tensor | None = None
    added: Tensor | None = None
    for name, given in (("mask", mask), ("bias", bias)):
        if given is None:
            continue
        array = given.detach()[(None,) * (4 - given.dim())]
        if array.dim() != 4 or any(n not in (1, full) for n, full in zip(array.shape, shape, strict=True)):
            raise InputError(
                f"attention_entropy: {name} of shape {tuple(given.shape)} does not broadcast to "
                f"(batch, heads, rows, keys) = {tuple(shape)}; a padding mask (batch, keys) is given "
                "as mask[:, None, None, :]."
            )
        if array.dtype == torch.bool:
            if name == "bias":
                raise InputError("attention_entropy: bias is boolean; give it as mask.")
            kept, rest = array, None
        elif array.dtype in _FLOATS:
            if bool((array.isnan() | array.isposinf()).any()):
                raise InputError(f"attention_entropy: {name} holds NaN or +inf; use -inf to hide a key.")
            kept, rest = additive(array)
        else:
            raise InputError(
                f"attention_entropy: {name} is {array.dtype}; give bool (True = seen) or floats to be added."
            )
        if not bool(kept.all()):
            keeps = kept if keeps is None else keeps & kept
        if rest is not None:
            # A sum in the type of its terms, bfloat16 say, would be off by what no estimate knows of.
            added = rest if added is None else added.double() + rest.double()
    return keeps, added


def _choose(
    rows: float | Sequence[int] | Tensor | None, length: int, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows to measure, and how many rows each stands for."""
    if rows is None:
        every = torch.arange(length, device=device)
        return every, torch.ones_like(every)
    if isinstance(rows, float):
        if not 0 < rows <= 1:
            raise InputError(
                f"attention_entropy: rows = {rows} is not a share in (0, 1]; give indices as integers."
            )
        strata = max(1, round(rows * length))
        bounds = torch.arange(strata + 1) * length // strata
        sizes = bounds.diff()
        draws = torch.rand(strata, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        chosen = bounds[:-1] + (draws * sizes).long().clamp_max(sizes - 1)
        return chosen.to(device), sizes.to(device)
    try:
        chosen = torch.as_tensor(rows, device=device)
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"attention_entropy: rows = {rows!r} is neither a share nor a list of indices."
        ) from problem
    integers = not chosen.is_floating_point() and chosen.dtype != torch.bool and chosen.dim() == 1
    if not integers or not len(chosen) or not bool(((chosen >= 0) & (chosen < length)).all()):
        raise InputError(
            f"attention_entropy: rows must be a list of indices from 0 to {length - 1}, or a share (a float)."
        )
    return chosen.long(), torch.ones_like(chosen, dtype=torch.int64)


def _without_padding(key: Tensor, visible: VisibleKeys) -> Tensor:
    """Keys that no row sees set to zero where any are not finite: padding may hold anything."""
    if bool(key.sum(dtype=torch.float64 if key.dtype == torch.float64 else torch.float32).isfinite()):
        return key
    if visible.mask is not None:
        inside = visible.mask.any(1).any(1)
    else:
        place = torch.arange(key.shape[2], device=key.device)
        inside = (place >= visible.begin[:, None]) & (place < visible.end[:, None])
    return key.masked_fill(~inside[:, None, :, None], 0.0)

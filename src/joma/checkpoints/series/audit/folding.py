"""All entries of a tensor in a few numbers that keep its distances.

A large tensor is folded: entry j is added, with a sign that was drawn for j, to the sum at j modulo the
number of sums (the count sketch of Charikar, Chen and Farach-Colton 2002, with runs of places instead of a
hash). Sums are linear: those of a difference are the difference of the sums. Its squared length is kept in
the mean, with a relative standard deviation of at most sqrt(2 / sums), 1.1 % for 16,384.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from joma.core.arguments import Array

MOST_SUMS = 16_384
"""Numbers that are kept of a tensor; of a smaller tensor they are its entries."""
_FEWEST_SUMS = 512
_MEMORY = 256 << 20
"""Bytes that the numbers of a whole series may take."""
_PERIOD = 65_521
"""Of the signs: a prime, so that the entries of one sum have signs of their own."""
_AT_ONCE = 1 << 20


def sums_for(members: int, tensors: int) -> int:
    """How many numbers are kept of each tensor, so that all fit into memory: a power of two.

    A series that grows keeps the number for long, and what was read of its members counts on.
    """
    fit = _MEMORY // (8 * max(1, members * tensors))
    return max(_FEWEST_SUMS, min(MOST_SUMS, 1 << max(0, fit.bit_length() - 1)))


def fold(flat: Tensor, sums: int) -> Array:
    """A vector's entries, or ``sums`` sums of them with drawn signs, over the square root of their number.

    Args:
        flat: (entries,), of any type of real numbers but those of one byte.
        sums: a power of two, at most 2**20.

    Returns:
        float64. The mean square of the entries is that of the numbers in the mean over the signs; so it is of
        the difference of two vectors of one length.
    """
    size = flat.numel()
    if size <= sums:
        return flat.to(torch.float64, copy=True).numpy()
    signs, found = _signs(), np.zeros(sums)
    step = _AT_ONCE // sums * sums
    for begin in range(0, size, step):
        part = flat[begin : begin + step].double().numpy()
        part = part * signs[begin % _PERIOD : begin % _PERIOD + len(part)]
        rows = len(part) // sums
        found += part[: rows * sums].reshape(rows, sums).sum(axis=0)
        found[: len(part) - rows * sums] += part[rows * sums :]
    kept: Array = found * np.sqrt(sums / size)
    return kept


@lru_cache(maxsize=1)
def _signs() -> Array:
    drawn = np.random.default_rng(0).choice([-1.0, 1.0], _PERIOD)
    return np.resize(drawn, _PERIOD + _AT_ONCE)


def sample_places(size: int, samples: int) -> Tensor:
    """The places of the entries whose digits are looked at: all, or ``samples`` drawn for this size."""
    if size <= samples:
        return torch.arange(size)
    drawn = np.random.default_rng(size).integers(0, size, samples)
    return torch.from_numpy(np.sort(drawn))

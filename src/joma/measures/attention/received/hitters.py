"""Heavy hitters: the few keys that receive most of the attention, and how far heads agree on them."""

from __future__ import annotations

import torch
from torch import Tensor

from joma.core.errors import InputError

SHARE = 0.9
"""Of the mass, that heavy hitters receive together (H2O: Zhang et al. 2023, arXiv:2306.14048)."""


def heavy_hitters(mass: Tensor, share: float = SHARE) -> Tensor:
    """The smallest set of keys that together receive at least ``share`` of the mass: (..., keys) bool.

    Args:
        mass: (..., keys), what each key receives: finite, nothing below 0, and not 0 altogether.
        share: in (0, 1]. Of equal keys at the edge the first ones belong to the set.

    Raises:
        InputError: another share, or a mass that is none.
    """
    if not 0 < share <= 1:
        raise InputError(f"share = {share} of the mass in heavy_hitters; give a number above 0, at most 1.")
    total = mass.double().sum(-1, keepdim=True)
    if not mass.numel() or not bool((mass >= 0).all() & total.isfinite().all() & (total > 0).all()):
        raise InputError(
            "heavy_hitters takes what keys receive: finite numbers of at least 0, and some above 0 in every "
            "row; take ReceivedAttention.mass."
        )
    ordered, order = mass.double().sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    # Rounding must not add a key to a sum that has reached its share.
    chosen = before < share * total * (1 - 1e-12)
    return chosen.new_zeros(chosen.shape).scatter(-1, order, chosen)


def hitter_share(mass: Tensor, seen: Tensor | None = None, share: float = SHARE) -> Tensor:
    """Heavy hitters over all keys: small where few keys receive most; shape (...,), float64.

    Args:
        mass: as of ``heavy_hitters``.
        seen: (..., keys) how many queries can see each key: keys that none sees count nowhere.
        share: as of ``heavy_hitters``.

    Raises:
        InputError: as ``heavy_hitters``.
    """
    hitters = heavy_hitters(mass, share).sum(-1).double()
    keys = mass.shape[-1] if seen is None else (seen > 0).sum(-1).double()
    return hitters / keys


def hitter_overlap(one: Tensor, other: Tensor) -> Tensor:
    """Keys in both sets over keys in either (Jaccard's index); sets as (..., keys) bool."""
    return (one & other).sum(-1).double() / (one | other).sum(-1).double()


def even_share(keys: int, share: float = SHARE) -> float:
    """The share of hitters under uniform causal attention, where key j receives sum_(i >= j) 1 / (i + 1).

    Early keys are seen by more queries: this is what position alone makes.

    Examples:
        >>> round(even_share(1000), 2)
        0.59
    """
    received = (1 / torch.arange(1, keys + 1, dtype=torch.float64)).flip(0).cumsum(0).flip(0)
    return float(hitter_share(received, share=share))

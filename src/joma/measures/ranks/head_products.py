"""The largest singular value of W_Q^T W_K of each head, followed while the weights change.

The product is never formed. A warm-started power iteration multiplies one vector of each head with the
product and with its transpose: what it has found of one step's weights is where it begins at the next. The
value is a lower bound of sigma_1, from below by what the iteration has not found yet. Softmax entropy is
bounded below by a falling function of it (Zhai et al. 2023, "Stabilizing Transformer Training by Preventing
Attention Entropy Collapse", Theorem 3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from joma.core.errors import InputError

FIRST = 30
"""Iterations from a random vector, before the first value is believed."""


def first_vectors(query: Tensor, key: Tensor) -> Tensor:
    """A vector of unit length for each head from which ``follow_norms`` can go on.

    Args:
        query: (heads, width, inputs), W_Q of each head.
        key: (key heads, width, inputs), W_K; each key head is shared by as many query heads, in order.

    Returns:
        (heads, inputs of the keys), float32, or float64 for weights of float64. Drawn from a fixed seed, so
        that a run is the same when it is repeated; the global generator is left alone.

    Raises:
        InputError: shapes that do not fit.
    """
    _check(query, key)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(query.shape[0], key.shape[2], generator=generator)
    vectors = torch.nn.functional.normalize(drawn, dim=1).to(key.device, _wide(query, key))
    for _ in range(FIRST):
        _, vectors = follow_norms(query, key, vectors)
    return vectors


def follow_norms(query: Tensor, key: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """One iteration: sigma_1 of W_Q^T W_K of each head as far as it is found, and the vectors to go on from.

    Args:
        query: (heads, width, inputs); key: (key heads, width, inputs); of any floating dtype.
        vectors: what the last iteration, or ``first_vectors``, gave.

    Returns:
        sigma_1 (heads,), at most the true one but for rounding, and the vectors (heads, inputs). A head
        whose weights are zero or not finite has 0 or NaN, and keeps its vector.

    Examples:
        >>> query, key = torch.eye(3)[None], torch.diag(torch.tensor([1.0, 2.0, 4.0]))[None]
        >>> from joma.measures.ranks.head_products import first_vectors, follow_norms
        >>> norms, _ = follow_norms(query, key, first_vectors(query, key))
        >>> round(norms.item(), 4)
        4.0
    """
    wide = _wide(query, key)
    query, key = query.to(wide), key.to(wide)
    heads, shared = query.shape[0], key.shape[0]
    with torch.no_grad():
        grouped = vectors.view(shared, heads // shared, -1)
        keys = (grouped @ key.mT).reshape(heads, 1, -1)  # (heads, 1, width)
        left = keys @ query
        left = left / left.norm(dim=2, keepdim=True)
        queries = (left @ query.mT).view(shared, heads // shared, -1)
        found = (queries @ key).view(heads, -1)
        norms = found.norm(dim=1)
        usable = norms.isfinite() & (norms > 0)
        return norms.nan_to_num(nan=torch.nan, posinf=torch.nan), torch.where(
            usable[:, None], found / norms[:, None], vectors
        )


def _wide(query: Tensor, key: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (query.dtype, key.dtype) else torch.float32


def _check(query: Tensor, key: Tensor) -> None:
    if query.ndim != 3 or key.ndim != 3 or query.shape[1] != key.shape[1] or query.shape[0] % key.shape[0]:
        raise InputError(
            f"queries of shape {tuple(query.shape)} and keys of shape {tuple(key.shape)} are not (heads, "
            "width, inputs) of one width, with a whole number of query heads to each key head."
        )

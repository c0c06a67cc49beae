"""How a checkpoint's weights differ from another's: the matrices, and the product of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pandas as pd
import torch
from torch import Tensor

from joma.errors import InputError
from joma.probes.families.matrices import Matrix, find_matrices
from joma.probes.families.sizes import sizes_for
from joma.probes.weights.checkpoints import Checkpoint

_BLOCK_ENTRIES = 2**20
_RANK_TOLERANCE = 1e-14


class Row(TypedDict):
    """One measurement."""

    layer: int | None
    stack: str
    head: int | None
    expert: str
    matrix: str
    metric: str
    against: str
    value: float
    unit: str
    dtype: str


@dataclass(frozen=True)
class Spectrum:
    """What the singular values s of a matrix say."""

    norm: float
    """The Frobenius norm."""
    stable_rank: float
    """|M|_F^2 / s_1^2; NaN of a zero matrix."""
    spectral_entropy: float
    """-sum_i p_i log p_i in nats, p_i = s_i^2 / |M|_F^2: log of the number of directions that carry the
    matrix's energy (Roy and Vetterli's effective rank takes s_i in place of s_i^2); NaN of a zero matrix."""


def spectrum_of(squares: Tensor) -> Spectrum:
    """From the squared singular values, (n,) float64."""
    squares = squares.clamp(min=0.0)
    total = float(squares.sum())
    if total == 0.0:
        return Spectrum(0.0, math.nan, math.nan)
    shares = squares / total
    entropy = -float(torch.special.xlogy(shares, shares).sum())
    return Spectrum(math.sqrt(total), total / float(squares.max()), entropy)


def matrix_spectrum(matrix: Tensor) -> Spectrum:
    """Of a matrix (rows, columns), by the eigenvalues of its smaller Gram matrix in float64.

    The squares of small singular values lose their digits there, and carry nothing here.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    columns = tall.shape[1]
    gram = torch.zeros(columns, columns, dtype=torch.float64)
    rows = max(1, _BLOCK_ENTRIES // columns)
    for first in range(0, tall.shape[0], rows):
        block = tall[first : first + rows].double()
        gram.addmm_(block.T, block)
    return spectrum_of(torch.linalg.eigvalsh(gram))


def product_spectrum(left: Tensor, right: Tensor) -> Spectrum:
    """Of left^T right, for (r, d) and (r, d) with r small, without the d x d matrix.

    With left^T = U R and right^T = V S, the singular values are those of R S^T (r x r).
    """
    r = torch.linalg.qr(left.double().T, mode="r").R
    s = torch.linalg.qr(right.double().T, mode="r").R
    squares = torch.linalg.svdvals(r @ s.T).square()
    return spectrum_of(torch.where(squares > _RANK_TOLERANCE**2 * squares.max(), squares, 0.0))


def changes(
    now: Checkpoint, earlier: Sequence[tuple[str, Checkpoint]], roles: Iterable[str]
) -> tuple[pd.DataFrame, str]:
    """Spectra of W(t) - W(t') of every matrix, and of Q^T K and its change of every head.

    Matrix by matrix: no more than a few matrices are in memory at a time. Q^T K is the head's bilinear form
    between residual streams, before rotary positions, norms and the scale.

    Args:
        now: the checkpoint at t.
        earlier: what it is compared with, each with its name: ``previous``, ``first``.
        roles: of the matrices, as of :func:`joma.probes.weights.ranks.probe_weights`.

    Returns:
        Rows ``layer, stack, head, expert, matrix, metric, against, value, unit, dtype``, and why there is no
        Q-K product (empty where there is one). Columns ``against`` is empty for Q^T K itself.

    Raises:
        InputError: a tensor that holds NaN or infinities.
    """
    shapes = {name: weight.shape for name, weight in now.weights.items() if not weight.problem}
    wanted = set(roles)
    found = [matrix for matrix in find_matrices(shapes, now.config) if matrix.role in wanted]
    rows: list[Row] = []
    for matrix in found if earlier else []:
        weight = _taken(now, matrix)
        for name, other in earlier:
            difference = weight - _taken(other, matrix, weight.shape)
            rows += _rows(matrix, None, matrix.role, name, matrix_spectrum(difference), now)
            del difference
    products, reason = _products(now, earlier, found)
    columns = list(Row.__annotations__)
    table = pd.DataFrame([*rows, *products], columns=columns)
    return table.astype({"layer": "Int64", "head": "Int64"}), reason


def _taken(checkpoint: Checkpoint, matrix: Matrix, shape: torch.Size | None = None) -> Tensor:
    weight = matrix.take(checkpoint.weight(matrix.tensor)).float()
    if shape is not None and weight.shape != shape:
        raise InputError(
            f"{checkpoint.path}: {matrix.tensor} has the shape {tuple(weight.shape)}, another checkpoint of "
            f"the series {tuple(shape)}; they are not of one run."
        )
    if not bool(weight.isfinite().all()):
        raise InputError(f"{checkpoint.path}: {matrix.tensor} holds NaN or infinities; the run diverged.")
    return weight


def _products(
    now: Checkpoint, earlier: Sequence[tuple[str, Checkpoint]], found: Sequence[Matrix]
) -> tuple[list[Row], str]:
    pairs = _pairs(found)
    heads = sizes_for(now.config or {}, "").heads
    if not pairs or heads is None:
        why = "the config tells no number of heads" if pairs else "no layer has queries and keys apart"
        return [], f"no Q-K product: {why}"
    rows: list[Row] = []
    for query, key in pairs:
        ours = (_taken(now, query), _taken(now, key))
        theirs = [
            (name, _taken(one, query, ours[0].shape), _taken(one, key, ours[1].shape))
            for name, one in earlier
        ]
        size, left = divmod(ours[0].shape[0], heads)
        if left or not size or ours[1].shape[0] % size:
            return [], f"no Q-K product: {ours[0].shape[0]} rows of queries are not {heads} heads"
        share = heads // max(1, ours[1].shape[0] // size)
        for head in range(heads):
            q, k = _head(ours[0], head, size), _head(ours[1], head // share, size)
            rows += _rows(query, head, "query_key", "", product_spectrum(q, k), now)
            for name, other_q, other_k in theirs:
                left_part = torch.cat([q, -_head(other_q, head, size)])
                right_part = torch.cat([k, _head(other_k, head // share, size)])
                rows += _rows(query, head, "query_key", name, product_spectrum(left_part, right_part), now)
    return rows, ""


def _pairs(found: Sequence[Matrix]) -> list[tuple[Matrix, Matrix]]:
    keys = {(m.stack, m.layer, m.expert): m for m in found if m.role == "key"}
    return [
        (m, keys[m.stack, m.layer, m.expert])
        for m in found
        if m.role == "query" and (m.stack, m.layer, m.expert) in keys
    ]


def _head(weight: Tensor, head: int, size: int) -> Tensor:
    return weight[head * size : (head + 1) * size]


def _rows(
    matrix: Matrix, head: int | None, role: str, against: str, found: Spectrum, now: Checkpoint
) -> list[Row]:
    kind = "" if not against else "change_"
    values = (
        ("norm", found.norm, ""),
        ("stable_rank", found.stable_rank, ""),
        ("spectral_entropy", found.spectral_entropy, "nats"),
    )
    return [
        Row(
            layer=matrix.layer,
            stack=matrix.stack,
            head=head,
            expert=matrix.expert,
            matrix=role,
            metric=f"{kind}{metric}",
            against=against,
            value=value,
            unit=unit,
            dtype=now.weights[matrix.tensor].dtype,
        )
        for metric, value, unit in values
    ]

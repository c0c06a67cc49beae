"""Whether the shapes of the first rank's file are those of a whole model or of a slice of one.

Ranks that share a model split its heads, its hidden neurons and its vocabulary, or the width of its
embedding, and leave the residual width whole. So the sizes that a configuration states are held against the
shapes; without one a matrix of queries as high as the residual stream is wide is whole, and an embedding
narrower than the residual stream is a slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from joma.checkpoints.families.layout import Shape
from joma.checkpoints.families.matrices import Matrix, find_matrices
from joma.checkpoints.families.sizes import Config, Sizes, sizes_for

_NEURONS = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size")
"""What configurations call the number of hidden neurons of an MLP."""


def slice_by_shapes(shapes: Mapping[str, Shape], config: Config | None) -> str:
    """Why tensors of these shapes are no whole model, or may be none: half a sentence; empty if they are."""
    sides = {}
    for matrix in find_matrices(shapes, config):
        rows, columns = matrix.take(torch.empty(shapes[matrix.tensor], device="meta")).shape
        sides[matrix] = (rows, columns)
    widths = {columns for matrix, (_, columns) in sides.items() if matrix.role in ("query", "lower", "gate")}
    whole = False
    for matrix, (rows, columns) in sides.items():
        for size, full in _split_sizes(matrix, rows, columns, sizes_for(config or {}, matrix.tensor), widths):
            if size < full and full % size == 0:
                return f"{matrix.tensor} has {size} where the whole model has {full}"
            whole = whole or size == full
    return "" if whole else "nothing tells whether its matrices are whole or slices"


def _split_sizes(
    matrix: Matrix, rows: int, columns: int, sizes: Sizes, widths: set[int]
) -> Iterator[tuple[int, int]]:
    """The sizes of a matrix that ranks split, each beside that of the whole model, where it is known."""
    hidden = sizes.hidden or (next(iter(widths)) if len(widths) == 1 else None)
    if matrix.role == "embedding":
        if hidden and columns != hidden:  # as wide as the residual stream, it may still lack rows
            yield columns, hidden
        if vocabulary := sizes.number("vocab_size"):
            yield rows, vocabulary
    elif matrix.role == "query":
        if sizes.heads and (width := sizes.query_width or (sizes.hidden or 0) // sizes.heads):
            yield rows, sizes.heads * width
        elif rows == columns:
            yield rows, columns
    elif matrix.role in ("lower", "gate") and not matrix.expert and (neurons := sizes.number(*_NEURONS)):
        yield rows, neurons

"""Are embeddings orthogonal? Cosines between the vectors of different tokens, within and between layers.

JoMA assumes orthonormal embeddings; Sec. 7 and the poster ask how far real ones are from that. Here the
cosines of all pairs are counted block by block, so that no matrix of all pairs is ever held, and set beside
those of independent random directions of the same width (``random_absolute_cosine`` and its like).
The theorems on almost orthogonal embeddings are in ``joma.theory.coherence``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv, gammaln
from torch import Tensor

from joma.core.errors import InputError

Numbers = Tensor | ArrayLike
"""A tensor, or what NumPy takes for an array."""

BINS = 2000
"""Into so many equal bins of [0, 1] absolute cosines are counted."""


@dataclass(frozen=True, eq=False)
class Cosines:
    """The cosines of one kind of pairs. Standard errors: jackknife over tokens, which share pairs; NaN
    where leaving out one token leaves no pair.
    """

    pairs: int
    mean: float
    mean_error: float
    mean_absolute: float
    mean_absolute_error: float
    root_mean_square: float
    root_mean_square_error: float
    largest: float
    """Largest |cos|: between different tokens, the mutual coherence."""
    largest_pair: tuple[int, int]
    """Rows of the two vectors."""
    histogram: NDArray[np.int64]
    """(BINS,): pairs by |cos|."""

    def quantile(self, probability: float) -> float:
        """Quantile of |cos|, to within half a bin (1 / (2 BINS)).

        Raises:
            InputError: a probability outside [0, 1].
        """
        if not 0 <= probability <= 1:
            raise InputError(f"Cosines.quantile: probability = {probability:g} must lie in [0, 1].")
        wanted = max(probability * self.pairs, 1)
        return (float(np.searchsorted(np.cumsum(self.histogram), wanted)) + 0.5) / BINS


@dataclass(frozen=True)
class Coherence:
    """What ``embedding_coherence`` and ``cross_coherence`` return; None where there is no such
    pair."""

    width: int
    """Dimension of the vectors."""
    different: Cosines | None
    """Vectors of different tokens: what orthogonality is about."""
    same_token: Cosines | None
    """Different vectors (rows) of the same token."""
    same_row: Cosines | None
    """Between two sets, vectors of the same row; None within one set."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Vectors made unit, once for all the pairs that they are in."""

    units: Tensor
    """(N, width) float64, on the CPU."""
    centred: bool

    @classmethod
    def of(cls, vectors: Numbers, *, centred: bool = False) -> Directions:
        """Of vectors (N, width), about their mean where ``centred``.

        Raises:
            InputError: as ``embedding_coherence``.
        """
        return cls(_unit_rows(vectors, "Directions", "vectors", centred), centred)


def embedding_coherence(
    vectors: Numbers | Directions, *, tokens: Numbers | None = None, centred: bool = False, block: int = 1024
) -> Coherence:
    """Cosines between all pairs of vectors of one set: an embedding table, or one layer's hidden states.

    Args:
        vectors: (N, width), a tensor or array of real numbers, or their directions; computed in float64.
        tokens: (N,) integers: whose vector each is; all different if None.
        centred: subtract the mean vector first (directions stay as they were made). Hidden states often
            share one large component, and are far from orthogonal for that reason alone; so little as N
            random vectors have mean cosine -1 / (N - 1) when centred.
        block: rows at a time; memory is about 30 * block * N bytes.

    Raises:
        InputError: no matrix of at least two rows, NaN or infinities, a vector that is zero (after
            centring) and has no direction, tokens that do not match.
    """
    where = "embedding_coherence"
    units = _unit_rows(vectors, where, "vectors", centred)
    labels = _labels(tokens, units.shape[0], where)
    kinds = {name: _Tally(int(labels.max()) + 1) for name in ("different", "same_token")}
    for begin in range(0, units.shape[0], _checked_block(block, where)):
        cosines = (units[begin : begin + block] @ units[begin:].T).clamp_(-1.0, 1.0)
        later = torch.ones_like(cosines, dtype=torch.bool).triu(1)  # each pair once
        rows, columns = labels[begin : begin + block], labels[begin:]
        same = rows[:, None] == columns
        kinds["different"].add(cosines, later & ~same, rows, columns, (begin, begin))
        kinds["same_token"].add_few(cosines, later & same, rows, (begin, begin))
    return Coherence(
        units.shape[1], kinds["different"].cosines(), kinds["same_token"].cosines(), same_row=None
    )


def cross_coherence(
    first: Numbers | Directions,
    second: Numbers | Directions,
    *,
    tokens: Numbers | None = None,
    centred: bool = False,
    block: int = 1024,
) -> Coherence:
    """Cosines between two sets of vectors whose rows correspond: the same occurrences in two layers.

    Args:
        first: (N, width).
        second: (N, width); row i of both is the same occurrence of a token.
        tokens: (N,) integers: whose vectors row i holds; all different if None.
        centred: subtract each set's own mean first.
        block: rows at a time; memory is about 30 * block * N bytes.

    Returns:
        ``same_row`` has the N pairs (i, i), ``same_token`` and ``different`` the ordered pairs (i, j).

    Raises:
        InputError: as ``embedding_coherence``, and sets of different shapes.
    """
    where = "cross_coherence"
    a = _unit_rows(first, where, "first", centred)
    b = _unit_rows(second, where, "second", centred)
    if a.shape != b.shape:
        raise InputError(
            f"{where}: the sets have shapes {tuple(a.shape)} and {tuple(b.shape)}; give the same occurrences "
            "in two layers of one width."
        )
    labels = _labels(tokens, a.shape[0], where)
    kinds = {name: _Tally(int(labels.max()) + 1) for name in ("different", "same_token", "same_row")}
    kinds["same_row"].add_pairs(torch.linalg.vecdot(a, b).clamp_(-1.0, 1.0), labels)
    for begin in range(0, a.shape[0], _checked_block(block, where)):
        cosines = (a[begin : begin + block] @ b.T).clamp_(-1.0, 1.0)
        rows = labels[begin : begin + block]
        same = rows[:, None] == labels
        here = torch.arange(a.shape[0]) == begin + torch.arange(rows.numel())[:, None]
        kinds["different"].add(cosines, ~same, rows, labels, (begin, 0))
        kinds["same_token"].add_few(cosines, same & ~here, rows, (begin, 0))
    return Coherence(a.shape[1], **{name: tally.cosines() for name, tally in kinds.items()})


def aligned_coherence(
    sets: Sequence[Numbers | Directions], *, tokens: Numbers | None = None, centred: bool = False
) -> dict[tuple[int, int], Cosines]:
    """Cosines between vectors of the same row alone, for all pairs (i, j), i < j, of several sets.

    Args:
        sets: of vectors, (N, width) each; row n of all is the same occurrence of a token.
        tokens: as in ``cross_coherence``.
        centred: as in ``cross_coherence``.

    Raises:
        InputError: as ``cross_coherence``.
    """
    where = "aligned_coherence"
    units = [_unit_rows(vectors, where, f"set {k}", centred) for k, vectors in enumerate(sets)]
    if len(units) < 2 or any(unit.shape != units[0].shape for unit in units):
        raise InputError(
            f"{where}: the sets have shapes {[tuple(unit.shape) for unit in units]}; give two or more of "
            "one shape."
        )
    labels = _labels(tokens, units[0].shape[0], where)
    found = {}
    for i, j in combinations(range(len(units)), 2):
        tally = _Tally(int(labels.max()) + 1)
        tally.add_pairs(torch.linalg.vecdot(units[i], units[j]).clamp_(-1.0, 1.0), labels)
        cosines = tally.cosines()
        assert cosines is not None
        found[i, j] = cosines
    return found


def random_absolute_cosine(width: int) -> float:
    """E|cos| of independent random directions, exactly: ``Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))``.

    About ``sqrt(2 / (pi d))``, which is short of it by a share 1 / (4 d). Their mean cosine is 0 and the
    root mean square ``1 / sqrt(d)``.
    """
    d = _checked_width(width, "random_absolute_cosine")
    return float(np.exp(gammaln(d / 2) - gammaln((d + 1) / 2)) / np.sqrt(np.pi))


def random_cosine_quantile(width: int, probability: float) -> float:
    """Quantile of |cos| of independent random directions, exactly: cos^2 is Beta(1/2, (d-1)/2)."""
    d = _checked_width(width, "random_cosine_quantile")
    if not 0 <= probability <= 1:
        raise InputError(f"random_cosine_quantile: probability = {probability:g} must lie in [0, 1].")
    return 1.0 if d == 1 else float(np.sqrt(betaincinv(0.5, (d - 1) / 2, probability)))


def random_largest_cosine(width: int, pairs: int) -> float:
    """Median of the largest |cos| among so many pairs of independent random directions.

    The number of pairs beyond a level is nearly Poisson, since pairs are pairwise independent.
    """
    d = _checked_width(width, "random_largest_cosine")
    if pairs < 1:
        raise InputError(f"random_largest_cosine: pairs = {pairs}; there must be at least one.")
    return 1.0 if d == 1 else float(np.sqrt(betainccinv(0.5, (d - 1) / 2, min(1.0, np.log(2) / pairs))))


class _Tally:
    """Sums over the pairs of one kind, in all and of each token."""

    def __init__(self, tokens: int) -> None:
        self.histogram = torch.zeros(BINS, dtype=torch.int64)
        self.largest, self.place = -1.0, (0, 0)
        # Of each token's pairs: number, cosine, |cosine|, cosine^2; and the same over all pairs.
        self.of_token = torch.zeros(4, tokens, dtype=torch.float64)
        self.total = torch.zeros(4, dtype=torch.float64)

    def add(
        self, cosines: Tensor, chosen: Tensor, rows: Tensor, columns: Tensor, offset: tuple[int, int]
    ) -> None:
        """Count the chosen ones in a block of cosines between vectors of these, different, tokens."""
        if not bool(chosen.any()):
            return
        cosines = cosines.masked_fill(~chosen, 0.0)
        sizes = cosines.abs()
        most = int(sizes.argmax())
        if not chosen.flatten()[most]:  # all of them are zero
            most = int(chosen.flatten().to(torch.uint8).argmax())
        row, column = divmod(most, cosines.shape[1])
        self._largest(float(sizes[row, column]), (row + offset[0], column + offset[1]))
        # The others were counted as zeros.
        self._count(sizes)
        self.histogram[0] -= chosen.numel() - int(chosen.sum())
        for k, values in enumerate((chosen.double(), cosines, sizes, cosines.square())):
            by_row = values.sum(1)
            self.total[k] += by_row.sum()
            self.of_token[k].index_add_(0, rows, by_row)
            self.of_token[k].index_add_(0, columns, values.sum(0))

    def add_few(self, cosines: Tensor, chosen: Tensor, rows: Tensor, offset: tuple[int, int]) -> None:
        """Count the chosen ones in a block, few, each between two vectors of one token."""
        first, second = chosen.nonzero(as_tuple=True)
        if first.numel():
            places = torch.stack([first + offset[0], second + offset[1]], dim=1)
            self.add_pairs(cosines[first, second], rows[first], places)

    def add_pairs(self, cosines: Tensor, tokens: Tensor, places: Tensor | None = None) -> None:
        """Count cosines between two vectors of one token each; ``places`` are (i, i) if None."""
        sizes = cosines.abs()
        most = int(sizes.argmax())
        place = (most, most) if places is None else (int(places[most, 0]), int(places[most, 1]))
        self._largest(float(sizes[most]), place)
        self._count(sizes)
        for k, values in enumerate((torch.ones_like(cosines), cosines, sizes, cosines.square())):
            self.total[k] += values.sum()
            self.of_token[k].index_add_(0, tokens, values)

    def _largest(self, size: float, place: tuple[int, int]) -> None:
        if size > self.largest:
            self.largest, self.place = size, place

    def _count(self, sizes: Tensor) -> None:
        bins = (sizes * BINS).to(torch.int64).flatten().clamp_max_(BINS - 1)
        self.histogram += torch.bincount(bins, minlength=BINS)

    def cosines(self) -> Cosines | None:
        pairs, *sums = self.total
        if not pairs:
            return None
        mean, absolute, square = (float(value / pairs) for value in sums)
        left = pairs - self.of_token[0]
        # Tokens without a pair of this kind are no part of the sample.
        member = self.of_token[0] > 0
        without = (self.total[1:, None] - self.of_token[1:]) / left
        without[2] = without[2].clamp_min(0.0).sqrt()
        errors = [float("nan")] * 3
        count = int(member.sum())
        if count > 1 and bool((left[member] > 0).all()):
            spread = without[:, member].var(dim=1, correction=0)
            errors = ((count - 1) * spread).sqrt().tolist()
        return Cosines(
            int(pairs),
            mean,
            errors[0],
            absolute,
            errors[1],
            square**0.5,
            errors[2],
            self.largest,
            self.place,
            self.histogram.numpy(),
        )


def _unit_rows(vectors: Numbers | Directions, where: str, name: str, centred: bool) -> Tensor:
    if isinstance(vectors, Directions):
        if centred and not vectors.centred:
            raise InputError(
                f"{where}: the directions of {name} were not centred; make them with centred=True."
            )
        return vectors.units
    try:
        matrix = torch.as_tensor(vectors).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{where}: {name} is a {type(vectors).__name__}; give a tensor or array of numbers."
        ) from error
    if matrix.ndim != 2 or matrix.shape[0] < 2 or matrix.shape[1] < 1:
        raise InputError(
            f"{where}: {name} has shape {tuple(matrix.shape)}; give (vectors, width), two vectors or more."
        )
    bad = ~torch.isfinite(matrix).all(dim=1)
    if bool(bad.any()):
        raise InputError(
            f"{where}: {name} holds NaN or infinity in {int(bad.sum())} vector(s), first in row "
            f"{int(bad.nonzero()[0])}; mend or leave these out."
        )
    # By the largest entry first, so that no square leaves float64.
    scale = matrix.abs().max()
    matrix = matrix / (scale if scale > 0 else 1.0)
    lengths = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    if centred:
        matrix = matrix - matrix.mean(0)
    length = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    # What centring leaves of equal vectors is rounding.
    none = (length == 0) | (length <= 1e-14 * lengths.max() if centred else length == 0)
    if bool(none.any()):
        raise InputError(
            f"{where}: the vector in row {int(none.nonzero()[0, 0])} of {name} is zero"
            f"{' after centring' if centred else ''} and has no direction; leave it out."
        )
    return torch.div(matrix, length)


def _labels(tokens: Numbers | None, rows: int, where: str) -> Tensor:
    """(rows,) int64 from 0 on, equal for the same token."""
    if tokens is None:
        return torch.arange(rows)
    given = torch.as_tensor(tokens).cpu()
    if given.shape != (rows,) or given.is_floating_point() or given.is_complex():
        raise InputError(
            f"{where}: tokens have shape {tuple(given.shape)} and type {given.dtype} for {rows} vectors; "
            "give one whole number for each."
        )
    labels: Tensor = torch.unique(given, return_inverse=True)[1]
    return labels


def _checked_block(block: int, where: str) -> int:
    if block < 1:
        raise InputError(f"{where}: block = {block}; give at least one row at a time.")
    return block


def _checked_width(width: int, where: str) -> int:
    if width < 1:
        raise InputError(f"{where}: width = {width}; directions need at least one dimension.")
    return width

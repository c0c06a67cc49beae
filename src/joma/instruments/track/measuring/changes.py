"""How a checkpoint's weights differ from another's: the matrices, and the product of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.families.matrices import Matrix
from joma.checkpoints.families.sizes import sizes_for
from joma.checkpoints.formats.readers import SAFETENSORS_TYPES
from joma.checkpoints.formats.shard import Room, Rooms
from joma.checkpoints.omissions import OMITTED
from joma.checkpoints.series.alike import Key, matrices_by_key
from joma.core.threads import by_work
from joma.instruments.track.measuring.rows import Row

_BLOCK_ENTRIES = 2**20
_RANK_TOLERANCE = 1e-14
_EPSILON = {
    **{name: torch.finfo(dtype).eps for name, dtype in SAFETENSORS_TYPES.items() if dtype.is_floating_point},
    **{
        str(t).removeprefix("torch."): torch.finfo(t).eps
        for t in (torch.float32, torch.float16, torch.bfloat16)
    },
}
_ROUNDING = 1e-14
"""Of the factors' norms, in float64."""


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
    with by_work(matrix.numel()):
        for first in range(0, tall.shape[0], rows):
            block = tall[first : first + rows].double()
            gram.addmm_(block.T, block)
        return spectrum_of(torch.linalg.eigvalsh(gram))


def product_spectrum(left: Tensor, right: Tensor) -> Spectrum:
    """Of left^T right, for (r, d) and (r, d) with r small, without the d x d matrix.

    With left^T = U R and right^T = V S, the singular values are those of R S^T (r x r).
    """
    with by_work(left.numel()):
        r = torch.linalg.qr(left.double().T, mode="r").R
        s = torch.linalg.qr(right.double().T, mode="r").R
        values = torch.linalg.svdvals(r @ s.T)
        # Where two products are the same, what is left of their difference is rounding.
        rounding = _ROUNDING * torch.linalg.matrix_norm(r) * torch.linalg.matrix_norm(s)
        least = torch.maximum(_RANK_TOLERANCE * values.max(), rounding)
        return spectrum_of(torch.where(values > least, values.square(), 0.0))


def changes(
    now: Checkpoint,
    earlier: Sequence[tuple[str, Checkpoint]],
    roles: Iterable[str],
    layers: Iterable[int] | None = None,
    rooms: Rooms | None = None,
    heads: int | None = None,
) -> list[Row]:
    """Spectra of W(t) - W(t') of every matrix, and of Q^T K and its change of every head.

    Tensor by tensor, each read once of every checkpoint: no more than a few matrices are in memory at a time.
    Q^T K is the head's bilinear form between residual streams, before rotary positions, norms and the scale.

    Args:
        now: the checkpoint at t.
        earlier: what it is compared with, each with its name: ``previous``, ``first``.
        roles: of the matrices, as of ``joma.checkpoints.ranks.probe_weights``.
        layers: numbers of the layers; all by default.
        rooms: where tensors are read into, for the next call to use again.
        heads: of queries in a layer, where the configuration states no number of them.

    Returns:
        A row per number; ``against`` is empty for Q^T K itself. Of a change below the rounding of the stored
        type only the norm, with the rounding as its ``error_bound``, and a row of metric ``omitted``; such a
        row too for a matrix that holds NaN or infinities. Where no layer has a Q-K product, one row of
        metric ``omitted`` with the reason.
    """
    wanted, chosen = set(roles), None if layers is None else set(layers)
    mine = matrices_by_key(now.weights, now.config, wanted, chosen)
    theirs = [matrices_by_key(one.weights, one.config, wanted, chosen) for _, one in earlier]
    by_tensor: dict[str, list[Key]] = {}
    for key, matrix in mine.items():
        by_tensor.setdefault(matrix.tensor, []).append(key)
    rooms = Rooms() if rooms is None else rooms
    names = [name for name, _ in earlier]
    halves: dict[tuple[str, int | None, str], dict[str, list[Tensor]]] = {}
    still: dict[tuple[str, int | None, str], dict[str, set[str]]] = {}
    rows: list[Row] = []
    reason, products = "no layer has queries and keys apart", False
    for tensor, keys in by_tensor.items():
        whole = now.weight(tensor, rooms["now"])
        others = [_Reader(name, one, rooms[name]) for name, one in earlier]
        for key in keys:
            matrix, place = mine[key], key[:3]
            if not all(key in known for known in theirs):
                rows.append(_omission("another checkpoint of the series does not hold it", matrix))
                continue
            pairs = [
                (matrix, whole),
                *((m[key], o.read(m[key].tensor)) for m, o in zip(theirs, others, strict=True)),
            ]
            weights = [
                rooms[f"float {name}"].as_floats(one.take(stored))
                for name, (one, stored) in zip(["now", *names], pairs, strict=True)
            ]
            if len({weight.shape for weight in weights}) > 1:
                rows.append(_omission("another checkpoint of the series has it in another shape", matrix))
                continue
            if not all(_is_finite(weight) for weight in weights):
                rows.append(
                    _omission(
                        "it holds NaN or infinities in one of the checkpoints that are compared", matrix
                    )
                )
                continue
            size = float(torch.linalg.vector_norm(weights[0]))
            for name, other, source, known in zip(names, weights[1:], others, theirs, strict=True):
                difference = rooms["difference"].floats(other.shape)
                torch.sub(weights[0], other, out=difference)
                types = (now.weights[tensor].dtype, source.checkpoint.weights[known[key].tensor].dtype)
                found, rounding = matrix_spectrum(difference), size * rounding_of(types)
                if 0.0 < found.norm <= rounding:
                    still.setdefault(place, {}).setdefault(name, set()).add(matrix.role)
                    row = _rows(matrix, None, name, found, now)[0]
                    rows += [
                        row._replace(error_bound=rounding),
                        _omission(_below_rounding(name, types), matrix),
                    ]
                else:
                    rows += _rows(matrix, None, name, found, now)
            if matrix.role not in ("query", "key"):
                continue
            # Copies, since the next tensor is read into the same room.
            pair = halves.setdefault(place, {})
            pair[matrix.role] = [weight.clone() for weight in weights]
            if len(pair) == 2:
                stated = sizes_for(now.config or {}, tensor).heads or heads
                try:
                    rows += [
                        row
                        for head, against, found in _products(pair["query"], pair["key"], stated, names)
                        if not {"query", "key"} <= still.get(place, {}).get(against, set())
                        for row in _rows(matrix, head, against, found, now)
                    ]
                    products = True
                except _NoHeadsError as error:
                    reason = str(error)
                pair.clear()
    if not products:
        rows.append(_omission(f"no product of queries and keys: {reason}"))
    return rows


@dataclass
class _Reader:
    """Reads an earlier checkpoint's weights into one room; the last one is kept."""

    name: str
    checkpoint: Checkpoint
    room: Room
    last: tuple[str, Tensor] | None = None

    def read(self, tensor: str) -> Tensor:
        if self.last is None or self.last[0] != tensor:
            self.last = tensor, self.checkpoint.weight(tensor, self.room)
        return self.last[1]


def rounding_of(types: Iterable[str]) -> float:
    """What storing a matrix in these types changes it by, of its Frobenius norm.

    A quarter of the type's epsilon is a little above the root mean square of rounding errors: 0.0017 in bf16,
    0.0002 in fp16.
    """
    return math.hypot(*(_EPSILON.get(name, 0.0) / 4 for name in types))


def _below_rounding(against: str, types: Sequence[str]) -> str:
    kinds = " and ".join(dict.fromkeys(types))
    return f"its change since the {against} checkpoint is below the rounding of {kinds} and tells no speed"


class _NoHeadsError(Exception):
    """Queries and keys that cannot be taken apart by head, and why."""


def _is_finite(weight: Tensor) -> bool:
    # A sum is cheap, and not finite where an entry is not.
    return math.isfinite(float(weight.sum())) or bool(weight.isfinite().all())


def _products(
    queries: Sequence[Tensor], keys: Sequence[Tensor], heads: int | None, names: Sequence[str]
) -> Iterator[tuple[int, str, Spectrum]]:
    """(head, against, spectrum) of Q^T K now, and of its change since each of the earlier ones."""
    rows, key_rows = queries[0].shape[0], keys[0].shape[0]
    if heads is None:
        raise _NoHeadsError("no configuration tells the number of heads; give it (--heads)")
    size, left = divmod(rows, heads)
    if left or not size or key_rows % size:
        raise _NoHeadsError(f"{rows} rows of queries and {key_rows} of keys are not {heads} heads")
    share = heads // max(1, key_rows // size)
    for head in range(heads):
        q = [_head(one, head, size) for one in queries]
        k = [_head(one, head // share, size) for one in keys]
        yield head, "", product_spectrum(q[0], k[0])
        for name, other_q, other_k in zip(names, q[1:], k[1:], strict=True):
            # Q^T K - Q'^T K' as one product.
            yield head, name, product_spectrum(torch.cat([q[0], -other_q]), torch.cat([k[0], other_k]))


def _head(weight: Tensor, head: int, size: int) -> Tensor:
    return weight[head * size : (head + 1) * size]


def _rows(matrix: Matrix, head: int | None, against: str, found: Spectrum, now: Checkpoint) -> list[Row]:
    kind = "" if not against else "change_"
    role = matrix.role if head is None else "query_key"
    dtype = now.weights[matrix.tensor].dtype
    values = (
        ("norm", found.norm, ""),
        ("stable_rank", found.stable_rank, ""),
        ("spectral_entropy", found.spectral_entropy, "nats"),
    )
    place = (matrix.layer, matrix.stack, matrix.expert, head, role)
    return [
        Row(*place, f"{kind}{metric}", against, value, unit, None, dtype) for metric, value, unit in values
    ]


def _omission(reason: str, matrix: Matrix | None = None) -> Row:
    if matrix is None:
        return Row(None, "", "", None, "query_key", OMITTED, "", math.nan, "", None, "", reason=reason)
    place = (matrix.layer, matrix.stack, matrix.expert, None, matrix.role)
    return Row(*place, OMITTED, "", math.nan, "", None, "", reason=reason)

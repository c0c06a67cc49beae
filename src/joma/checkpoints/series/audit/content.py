"""What an audit keeps of a member: a digest and a few numbers of every tensor, and what they tell."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from joma.checkpoints.checkpoint import Checkpoint, open_checkpoint
from joma.checkpoints.families.names import canonical
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.shard import Room
from joma.checkpoints.series.audit.folding import fold, sample_places
from joma.checkpoints.series.members import Member
from joma.core.arguments import Array

_MOST_PREFIXES = 8
"""Pairs of prefixes that are tried where names differ by what stands before them."""
_BLOCKS, _COLUMNS, _SHORT = 64, 16, 8
"""Blocks of rows and of columns that have digests of their own, and bytes of such a digest."""
_ROWS = 6
_LEVELS = 260
_FEW = 16


@dataclass(frozen=True)
class TensorContent:
    """One tensor of one member."""

    name: str
    """As it is stored."""
    shape: tuple[int, ...]
    dtype: str
    file: str
    digest: bytes
    sample: Array
    """(samples,) its entries, or what they are folded to (``folding``); on a hub, of a large tensor, entries
    at places that depend on the shape alone; empty where there are no floats."""
    finite: bool
    zero: bool
    constant: bool
    coarse: str
    """``rounded`` or ``quantised`` where the entries have fewer digits than their type; else empty."""
    blocks: tuple[bytes, ...] = ()
    """A digest of each block of rows, in the order of the rows; of a vector, and on a hub, none."""
    columns: tuple[bytes, ...] = ()
    """The same of each block of a matrix's columns."""
    zero_rows: int = 0
    """Rows of a matrix that hold nothing but zeros; on a hub, none."""

    def blocks_of(self, kind: str) -> tuple[bytes, ...]:
        """The digests of ``rows`` or ``columns``."""
        return self.columns if kind == "columns" else self.blocks

    @property
    def short(self) -> bool:
        """Whether the sample is of numbers that bfloat16 or float16 hold as well."""
        single = torch.from_numpy(self.sample).float()
        return any(bool((single.to(d).float() == single).all()) for d in (torch.bfloat16, torch.float16))


@dataclass
class MemberContent:
    """One member: its tensors by canonical name, or why there are none."""

    member: Member
    path: Path
    tensors: dict[str, TensorContent] = field(default_factory=dict)
    problem: str = ""
    config: Config | None = None
    """Its ``config.json``, where there is one on this machine."""

    def stored_names(self, names: Mapping[str, object] | list[str] | tuple[str, ...]) -> tuple[str, ...]:
        """The names as this member stores them."""
        return tuple(self.tensors[name].name if name in self.tensors else name for name in names)

    def open(self) -> Checkpoint:
        """The checkpoint."""
        return open_checkpoint(self.path)

    def read(self, name: str) -> Tensor:
        """A whole tensor by its canonical name, in float32.

        Raises:
            JomaError: it cannot be read.
        """
        return self.open().read(self.tensors[name].name).float()


def read_content(member: Member, path: Path, checkpoint: Checkpoint, samples: int) -> MemberContent:
    """Read every tensor of a checkpoint once, one at a time.

    Raises:
        InputError: a tensor cannot be read.
    """
    found, room = MemberContent(member, path, config=checkpoint.config), Room()
    for name, entry in checkpoint.entries.items():
        if entry.problem or 0 in entry.shape:
            continue
        tensor = checkpoint.read(name, room)
        plain = canonical(name)
        found.tensors[name if plain in found.tensors else plain] = _content(
            name, tensor, entry.dtype, checkpoint.shards[name].path.name, samples
        )
    return found


def align_names(members: Sequence[MemberContent]) -> list[MemberContent]:
    """The members with tensors under the names of the last one, where theirs differ by what stands before.

    A run that is resumed in a wrapper, or exported, has its names behind another prefix (``model.``): that
    makes no tensor another one.
    """
    wanted = members[-1].tensors
    return [replace(one, tensors=_align(one.tensors, wanted)) for one in members]


def _align(own: Mapping[str, TensorContent], wanted: Mapping[str, TensorContent]) -> dict[str, TensorContent]:
    best, most = dict(own), len(own.keys() & wanted.keys())
    for before, after in _prefixes(own, wanted) if own.keys() != wanted.keys() else ():
        moved = {
            name if name in wanted or not name.startswith(before) else after + name.removeprefix(before): one
            for name, one in own.items()
        }
        same = sum(name in wanted and wanted[name].shape == one.shape for name, one in moved.items())
        if len(moved) == len(own) and same > most:
            best, most = moved, same
    return best


def _prefixes(own: Iterable[str], wanted: Iterable[str]) -> list[tuple[str, str]]:
    """What stands before the names of either side that end alike, the most frequent pairs first."""
    endings: dict[str, list[str]] = {}
    for name in wanted:
        for before, ending in _splits(name):
            endings.setdefault(ending, []).append(before)
    found = Counter[tuple[str, str]]()
    for name in own:
        longest = next(((before, ending) for before, ending in _splits(name) if ending in endings), None)
        if longest is not None:
            found.update((longest[0], after) for after in endings[longest[1]][:_MOST_PREFIXES])
    plain = [pair for pair, _ in found.most_common() if not any(map(str.isdigit, "".join(pair)))]
    return plain[:_MOST_PREFIXES]  # what holds a number is no prefix: layers may have been renumbered


def _splits(name: str) -> list[tuple[str, str]]:
    """The beginnings and endings of a name, the longest ending first."""
    parts = name.split(".")
    return [(".".join(parts[:i]) + "." * (i > 0), ".".join(parts[i:])) for i in range(max(1, len(parts) - 1))]


def _content(name: str, tensor: Tensor, dtype: str, file: str, samples: int) -> TensorContent:
    plain = tensor.detach().contiguous()
    shape = tuple(plain.shape)
    blocks = (
        [_digest(rows) for rows in plain.tensor_split(min(_BLOCKS, shape[0]))] if shape else [_digest(plain)]
    )
    content = hashlib.blake2b(b"".join(blocks), digest_size=16)
    content.update(f"{shape} {plain.dtype}".encode())
    floats = plain.is_floating_point()
    flat = plain.reshape(-1)
    flat = flat.float() if floats and flat.dtype.itemsize == 1 else flat
    finite = not floats or math.isfinite(float(flat.float().sum())) or bool(flat.float().isfinite().all())
    zero = floats and not bool(flat.count_nonzero())
    sample = fold(flat, samples) if floats and finite else np.zeros(0)
    constant = bool(flat.numel()) and bool((flat == flat[0]).all())
    digits = flat[sample_places(flat.numel(), samples)].double().numpy() if sample.size else sample
    coarse = tell_coarse(plain, digits) if sample.size and not constant else ""
    columns = plain.tensor_split(min(_COLUMNS, shape[1]), 1) if len(shape) == 2 else ()
    told = (
        *(sample, finite, zero, constant, coarse),
        tuple(one[:_SHORT] for one in blocks if len(shape) > 1),
        tuple(_digest(one.contiguous())[:_SHORT] for one in columns),
        int((flat.reshape(shape) == 0).all(1).sum()) if floats and len(shape) == 2 else 0,
    )
    return TensorContent(name, shape, dtype, file, content.digest(), *told)


def _digest(rows: Tensor) -> bytes:
    return hashlib.blake2b(rows.reshape(-1).view(torch.uint8).numpy().data, digest_size=16).digest()


def tell_coarse(tensor: Tensor, sample: Array) -> str:
    """``rounded`` or ``quantised`` where the entries have fewer digits than their type; else empty."""
    if tensor.dtype in (torch.float32, torch.float64) and _many(sample):
        single = torch.from_numpy(sample).float()
        for dtype in (torch.bfloat16, torch.float16):
            if bool((single.to(dtype).float() == single).all()):
                return "quantised" if _is_multiple(tensor) else "rounded"
    return "quantised" if tensor.ndim > 1 and _is_multiple(tensor) else ""


def _many(sample: Array) -> bool:
    """Whether there are enough different numbers for their digits to tell something."""
    return len(np.unique(sample)) >= _FEW


def _is_multiple(tensor: Tensor) -> bool:
    """Whether the entries of rows, of columns or of groups are whole multiples of their scale."""
    if tensor.ndim < 2 or tensor.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        return False
    matrix = tensor.reshape(-1, tensor.shape[-1])
    tolerance = 2e-4 if tensor.dtype in (torch.float32, torch.float64) else 0.0
    if not tolerance:
        return False
    spread = np.linspace(0, matrix.shape[0] - 1, min(_ROWS, matrix.shape[0])).astype(int)
    across = np.linspace(0, matrix.shape[1] - 1, min(_ROWS, matrix.shape[1])).astype(int)
    rows = matrix[spread].double().numpy()
    columns = matrix[:, across].double().numpy().T
    for group in (rows, columns, rows[:, :128], rows[:, :64], rows[:, :32], columns[:, :32]):
        told = [_has_scale(line, tolerance) for line in group]
        if len([one for one in told if one is not None]) > 1 and all(one is not False for one in told):
            return True
    return False


def _has_scale(line: Array, tolerance: float) -> bool | None:
    """Whether all entries are multiples of a scale; None where too few are different to tell."""
    sizes = np.unique(np.abs(line[line != 0.0]))
    if len(sizes) < 5 or np.count_nonzero(line) < _FEW:
        return None
    gaps = np.diff(sizes)
    least = min(float(sizes[0]), float(gaps[gaps > tolerance * sizes[-1] / _LEVELS].min(initial=sizes[0])))
    for part in (1, 2, 3):
        levels = sizes * part / least
        if levels[-1] > _LEVELS * part:
            return False
        if np.abs(levels - np.rint(levels)).max() < max(0.02, tolerance * levels[-1]):
            return True
    return False

"""Why a tensor does not lie between its neighbours: what was done to it, where that can be told."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from joma.checkpoints.series.audit.content import MemberContent, TensorContent
from joma.core.arguments import Array

_ALIKE, _NEARLY = 0.7, 0.9
_MOST_ROWS = 8192
_ENERGY = 0.9
_LARGEST = 1 << 22
_TELLING, _APART = 256, 0.3


def reason_for(
    name: str, own: MemberContent, low: MemberContent | None, up: MemberContent | None
) -> tuple[str, str]:
    """Word of the fault and half a sentence; ``discontinuity`` where nothing explains it.

    Args:
        name: of the tensor.
        own: the member in question.
        low: its neighbour before, None at the beginning.
        up: its neighbour after, None at the end.
    """
    now = _read(own, name)
    sides = [side for side in (low, up) if side is not None]
    references = [_read(side, name) for side in sides]
    reference = torch.stack(references).mean(0)
    if now.shape != reference.shape:
        return "other shape", ""
    change = now - reference
    if now.ndim > 1 and float(change.abs().max()) > _ENERGY * float(change.norm()):
        return "discontinuity", "in one entry"
    plain = _cosine(now, reference)
    if plain < -_ALIKE:
        return "negated", ""
    if (
        now.ndim == 2
        and now.shape[0] == now.shape[1]
        and _cosine(now.T, reference) > max(_ALIKE, plain + 0.1)
    ):
        return "transposed", ""
    if plain > _NEARLY:
        ratio = float(now.norm() / reference.norm())
        rest = float((now / ratio - reference).norm() / (now - reference).norm())
        if rest < 0.5 and not 0.8 < ratio < 1.25:
            return "scaled", f"by {ratio:.3g}"
    for shift in (1, -1, 2, -2):
        if now.ndim > 1 and _cosine(now.roll(shift, 0), reference) > max(_ALIKE, plain + 0.1):
            return "shifted", f"by {-shift} rows"
    if other := _other_name(name, now, own, sides[0], plain):
        return "swapped tensors", f"it is {other} of {sides[0].member.name}"
    if now.ndim > 1 and (moved := _moved_rows(now.flatten(1), reference.flatten(1))):
        return "permuted", f"{moved} of {now.shape[0]} along the first axis"
    if now.ndim > 1 and (
        moved := _moved_rows(now.transpose(0, 1).flatten(1), reference.transpose(0, 1).flatten(1))
    ):
        return "permuted", f"{moved} of {now.shape[1]} along the second axis"
    if now.ndim == 1 and plain < _ALIKE and torch.allclose(now.sort()[0], reference.sort()[0], rtol=0.05):
        return "permuted", ""
    if few := _few_lines(change):
        return "discontinuity", few
    if low is not None and up is not None and is_low_rank(change):
        return "merged adapter", ""
    return "discontinuity", ""


def _few_lines(change: Tensor) -> str:
    """Half a sentence where few rows or few columns of a matrix changed; an adapter changes all of them."""
    if change.ndim != 2:
        return ""
    squares = change.double().square()
    for axis, word in ((1, "rows"), (0, "columns")):
        shares = squares.sum(axis).sort(descending=True)[0].cumsum(0) / max(float(squares.sum()), 1e-300)
        count = int((shares < _ENERGY).sum()) + 1
        if count <= len(shares) // 3:
            return f"in {count} of {len(shares)} {word}"
    return ""


def is_low_rank(change: Tensor) -> bool:
    """Whether few directions carry a matrix: fewer than a quarter of its side, and at most 64."""
    if change.ndim != 2 or min(change.shape) < 16 or change.numel() > _LARGEST:
        return False
    squares = torch.linalg.svdvals(change.float()).square()
    most = max(1, min(64, min(change.shape) // 4))
    return bool(squares[:most].sum() > _ENERGY * squares.sum())


def _read(member: MemberContent, name: str) -> Tensor:
    return member.read(name)


def _cosine(a: Tensor, b: Tensor) -> float:
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size > 0 else 0.0


def _other_name(name: str, now: Tensor, one: MemberContent, side: MemberContent, plain: float) -> str:
    """The neighbour's tensor of another name that this one is like; empty where there is none."""
    best, found = max(_ALIKE, plain + 0.1), ""
    sample = side.tensors[name].sample
    own = None
    for other, tensor in side.tensors.items():
        if other == name or tensor.shape != tuple(now.shape) or tensor.sample.shape != sample.shape:
            continue
        if own is None:
            own = now
        if now.ndim < 2 and tensor.constant:
            continue
        # A sample tells without reading the whole tensor that two have nothing in common.
        if now.ndim > 1 and sample.size >= _TELLING and _of_samples(one, name, tensor) < best - _APART:
            continue
        alike = _cosine(now, _read(side, other))
        if now.ndim < 2:  # positive gains are alike whoever's they are
            exact = _read(side, other)
            alike = (
                alike if float((now - exact).norm()) < 0.3 * float((now - _read(side, name)).norm()) else 0.0
            )
            alike = alike if plain < 0.9 else (alike + 0.2 if alike > 0 else 0.0)
        if alike > best:
            best, found = alike, other
    return found


def _of_samples(one: MemberContent, name: str, other: TensorContent) -> float:
    own = one.tensors[name].sample
    return float(own @ other.sample) / max(1e-300, float(np.linalg.norm(own) * np.linalg.norm(other.sample)))


def _moved_rows(now: Tensor, reference: Tensor) -> int:
    """How many rows stand elsewhere in the reference; 0 where the rows are not the same ones."""
    if now.shape[0] < 2 or now.shape[0] > _MOST_ROWS or now.shape[1] < 4:
        return 0
    similar: Array = (_unit(now) @ _unit(reference).T).numpy()
    best = similar.argmax(1)
    alike = similar[np.arange(len(best)), best]
    moved = best != np.arange(len(best))
    if float(np.median(alike[moved])) < _ALIKE if moved.any() else True:
        return 0
    return int(moved.sum()) if len(set(best.tolist())) > 0.9 * len(best) else 0


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / length.clamp(min=1e-30)

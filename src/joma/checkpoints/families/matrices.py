"""Which tensor of a checkpoint is which matrix: lower MLP, gate, queries, keys, values, output, embedding.

A name tells the role (``joma.checkpoints.families.roles``), the configuration's sizes, the tensors beside it
and the family's record tell the layout (``joma.checkpoints.families.layout``). Both are decided here and
nowhere else; fused tensors are taken apart, experts one by one, and every matrix is given as (outputs,
inputs), whichever way it is stored. What has no role, or a layout that cannot be told, is returned by name
with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from joma.checkpoints.families.layout import Piece, Shape, UnclearError, UnusedError, pieces_of
from joma.checkpoints.families.names import Place, locate
from joma.checkpoints.families.roles import ATTENTION_ROLES, MLP_ROLES, role_at, role_beside
from joma.checkpoints.families.sizes import Config, Sizes, sizes_for

_ORDER = ("embedding", *ATTENTION_ROLES, *reversed(MLP_ROLES), "upper", "unembedding")


@dataclass(frozen=True)
class Matrix:
    """One weight matrix and where in a checkpoint it stands."""

    tensor: str
    """Name of the tensor that holds it, perhaps among others."""
    role: str
    """One of ``MLP_ROLES``, ``upper``, ``ATTENTION_ROLES``, ``embedding``, ``unembedding``."""
    layer: int | None
    stack: str
    """What tells apart layers of one number: ``encoder``, ``decoder``, ``vision_model.encoder``, ..."""
    expert: str
    """Number of the expert, ``shared``, or nothing."""
    piece: Piece
    """Which part of the tensor it is."""

    @property
    def transposed(self) -> bool:
        """Whether it is stored as (inputs, outputs)."""
        return self.piece.transposed

    def take(self, tensor: Tensor) -> Tensor:
        """The matrix, (outputs, inputs), out of its tensor as read."""
        return self.piece.take(tensor)


@dataclass(frozen=True)
class Found:
    """The matrices of a checkpoint, and what is none or could not be told."""

    matrices: list[Matrix]
    """Layer by layer."""
    unknown: dict[str, str]
    """Tensors of two or more dimensions that have no role, and why: each name occurs in one of the two."""
    unclear: dict[str, tuple[str, str]]
    """Tensors that have a role, but a layout that cannot be told: role and why."""


def find_matrices(shapes: Mapping[str, Shape], config: Config | None = None) -> list[Matrix]:
    """The matrices of a checkpoint that are known by name, layer by layer.

    Args:
        shapes: name and shape of every tensor.
        config: the model's ``config.json``. It tells how fused queries, keys and values are laid out; without
            it, those of head-wise layout (GPT-NeoX, BLOOM, Falcon) stay whole, as ``query_key_value``.
    """
    return sort_out(shapes, config).matrices


def role_of(name: str) -> str | None:
    """The role that a tensor's name tells (``gate_and_lower``, ``fused`` where it holds several), or None."""
    if name.endswith(("bias", "_blocks", "_scales", "scale_inv", "_scale")):
        return None
    return role_at(locate(name))


def sort_out(shapes: Mapping[str, Shape], config: Config | None = None) -> Found:
    """What every tensor of a checkpoint is: see ``find_matrices`` for the arguments."""
    settings = config or {}
    places = {name: locate(name) for name, shape in shapes.items() if len(shape) >= 2}
    beside = _siblings(places)
    sizes = {name: sizes_for(settings, name) for name in places}
    roles = {name: _role(place, beside, sizes[name]) for name, place in places.items()}
    by_holder: dict[str, dict[str, Shape]] = {}
    for name, role in roles.items():
        if role is not None:
            for key in (places[name].holder, places[name].block):
                by_holder.setdefault(key, {}).setdefault(role, shapes[name])
    found = Found([], {}, {})
    for name, place in places.items():
        role = roles[name]
        if role is None:
            found.unknown[name] = (
                "it stands within a part that is neither attention nor MLP"
                if place.part == "other"
                else "no role is known by its name"
            )
            continue
        near = by_holder[place.holder] | {
            r: s for r, s in by_holder.get(place.block, {}).items() if r not in by_holder[place.holder]
        }
        try:
            found.matrices.extend(_matrices(name, role, place, shapes[name], near, sizes[name]))
        except UnusedError as error:
            found.unknown[name] = str(error)
        except UnclearError as error:
            found.unclear[name] = (role, str(error))
    found.matrices.sort(key=_position)
    return found


def _siblings(places: Mapping[str, Place]) -> dict[str, set[str]]:
    beside: dict[str, set[str]] = {}
    for place in places.values():
        beside.setdefault(place.holder, set()).add(place.leaf)
    return beside


def _role(place: Place, beside: Mapping[str, set[str]], sizes: Sizes) -> str | None:
    role = role_at(place, sizes.family)
    if role is None:
        return None
    other = role_beside(place.leaf, beside[place.holder])
    return role if other is None else other or None


def _matrices(
    name: str, role: str, place: Place, shape: Shape, near: Mapping[str, Shape], sizes: Sizes
) -> list[Matrix]:
    return [
        Matrix(name, part, place.layer, place.stack, place.expert if expert is None else expert, piece)
        for part, expert, piece in pieces_of(role, place, shape, near, sizes)
    ]


def _position(matrix: Matrix) -> tuple[str, int, tuple[bool, int], int, str]:
    plain = matrix.role.removeprefix("cross_")
    return (
        matrix.stack,
        -1 if matrix.layer is None else matrix.layer,
        (plain != matrix.role, _ORDER.index(plain)),
        int(matrix.expert) if matrix.expert.isdigit() else -1,
        matrix.tensor,
    )

"""Which tensor of a checkpoint is which matrix: lower MLP, gate, queries, keys, values, output, embedding.

A name tells the role (``joma.checkpoints.families.roles``), the configuration's sizes, the tensors beside it
and the family's record tell the layout (``joma.checkpoints.families.layout``). Both are decided here and
nowhere else; fused tensors are taken apart, experts one by one, and every matrix is given as (outputs,
inputs), whichever way it is stored. What has no role, or a layout that cannot be told, is returned by name
with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from joma.checkpoints.families.gated import by_shapes
from joma.checkpoints.families.layout import Piece, Shape, UnclearError, UnusedError, pieces_of
from joma.checkpoints.families.names import Place, canonical, locate
from joma.checkpoints.families.places import differences, places_of
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
    tower: str
    """What tells apart layers of one number: ``encoder``, ``decoder``, ``vision_model.encoder``, ..."""
    expert: str
    """Number of the expert, ``shared``, or nothing."""
    piece: Piece
    """Which part of the tensor it is."""
    block: str = ""
    """Its layer's name as it stands (wrappers included); empty outside the layers."""
    module: str = ""
    """What tells it from the matrix of the same role in another module of its layer: ``mlps.1``."""

    @property
    def stack(self) -> str:
        """Of which tower, and of which module where its layer has several: no two matrices of one layer,
        expert and role have the same."""
        return ".".join(filter(None, [self.tower, self.module]))

    @property
    def transposed(self) -> bool:
        """Whether it is stored as (inputs, outputs)."""
        return self.piece.transposed

    def take(self, tensor: Tensor) -> Tensor:
        """The matrix, (outputs, inputs), out of its tensor as read."""
        return self.piece.take(tensor)


@dataclass(frozen=True)
class MatrixSearch:
    """The matrices of a checkpoint, and what is none or could not be told."""

    matrices: list[Matrix]
    """Layer by layer."""
    unknown: dict[str, str]
    """Tensors of two or more dimensions that have no role, and why: each name occurs in one of the two."""
    unclear: dict[str, tuple[str, str]]
    """Tensors that have a role, but a layout that cannot be told: role and why."""
    places: dict[str, Place] = field(default_factory=dict)
    """Where each of them stands."""


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


def sort_out(shapes: Mapping[str, Shape], config: Config | None = None) -> MatrixSearch:
    """What every tensor of a checkpoint is: see ``find_matrices`` for the arguments."""
    settings = config or {}
    places, nowhere = places_of(name for name, shape in shapes.items() if len(shape) >= 2)
    beside = _siblings(places)
    sizes = {name: sizes_for(settings, name) for name in places}
    roles = {name: _role(place, beside, sizes[name]) for name, place in places.items()}
    denied = _by_shapes(places, roles, shapes) | _around(places)
    by_holder: dict[str, dict[str, Shape]] = {}
    for name, role in roles.items():
        if role is not None:
            for key in (places[name].holder, places[name].block):
                by_holder.setdefault(key, {}).setdefault(role, shapes[name])
    found = MatrixSearch([], {}, {}, places)
    for name, place in places.items():
        role = roles[name]
        if role is None and name not in denied:
            found.unknown[name] = (
                "it stands within a part that is neither attention nor MLP"
                if place.part == "other"
                else "not recognised: no rule matches this name"
            )
            continue
        if name in denied or name in nowhere:
            found.unclear[name] = (role or "lower", denied.get(name) or nowhere[name])
            continue
        near = by_holder[place.holder] | {
            r: s for r, s in by_holder.get(place.block, {}).items() if r not in by_holder[place.holder]
        }
        biases = (f"{name}_bias", f"{name.removesuffix('.weight')}.bias")
        if bias := next((shapes[one] for one in biases if one in shapes), None):
            near["bias"] = bias
        try:
            found.matrices.extend(_matrices(name, role or "", place, shapes[name], near, sizes[name]))
        except UnusedError as error:
            found.unknown[name] = str(error)
        except UnclearError as error:
            found.unclear[name] = (role or "", str(error))
    return _told_apart(found)


def _by_shapes(
    places: Mapping[str, Place], roles: dict[str, str | None], shapes: Mapping[str, Shape]
) -> dict[str, str]:
    """Give the matrices of every MLP the roles that their shapes tell; what these deny, and why."""
    mlps: dict[tuple[str, str], list[str]] = {}
    for name, place in places.items():
        if place.part == "mlp" and roles[name] in (None, "lower", "gate", "upper", "gate_and_lower"):
            mlps.setdefault((place.block, place.module), []).append(name)
    denied: dict[str, str] = {}
    for names in mlps.values():
        if len(names) > 1:
            told, refused = by_shapes(
                {name: roles[name] for name in names},
                {name: places[name].leaf for name in names},
                {name: shapes[name] for name in names},
            )
            roles |= told
            denied |= refused
    return denied


def _around(places: Mapping[str, Place]) -> dict[str, str]:
    """Linear layers in a module that holds other matrices, which may add to them."""
    held: dict[str, list[str]] = {}
    for name in places:
        parts = canonical(name).split(".")
        for depth in range(1, len(parts)):
            held.setdefault(".".join(parts[:depth]), []).append(name)
    return {
        name: f"what {others[0]!r} in the same module does to it is not known"
        for name in places
        if (around := canonical(name).removesuffix(".weight")).endswith(".linear")
        and (others := [one for one in held[around.removesuffix(".linear")] if one != name])
    }


def _told_apart(found: MatrixSearch) -> MatrixSearch:
    """No two matrices of one tower, layer, expert and role: they get their modules' names, or are unclear."""
    by_key: dict[tuple[str, int | None, str, str], list[Matrix]] = {}
    for matrix in found.matrices:
        by_key.setdefault((matrix.tower, matrix.layer, matrix.expert, matrix.role), []).append(matrix)
    matrices: list[Matrix] = []
    for same in by_key.values():
        if len(same) == 1:
            matrices += same
            continue
        holders = [found.places[matrix.tensor].holder for matrix in same]
        if len(set(holders)) < len(holders):
            for matrix in same:
                others = ", ".join(repr(m.tensor) for m in same if m is not matrix)
                found.unclear[matrix.tensor] = (
                    matrix.role,
                    f"it has the role of {others} in the same module",
                )
            continue
        modules = differences(holders)
        matrices += [
            replace(matrix, module=modules[holder]) for matrix, holder in zip(same, holders, strict=True)
        ]
    # A tensor of which one part is unclear is unclear.
    found.matrices[:] = sorted((m for m in matrices if m.tensor not in found.unclear), key=_position)
    return found


def _siblings(places: Mapping[str, Place]) -> dict[str, set[str]]:
    beside: dict[str, set[str]] = {}
    for place in places.values():
        beside.setdefault(place.holder, set()).add(place.leaf)
    return beside


def _role(place: Place, beside: Mapping[str, set[str]], sizes: Sizes) -> str | None:
    role = role_at(place, sizes.family)
    other = role_beside(place.leaf, beside[place.holder])
    if other is None or (role is None and place.part != "mlp"):
        return role
    return other or None


def _matrices(
    name: str, role: str, place: Place, shape: Shape, near: Mapping[str, Shape], sizes: Sizes
) -> list[Matrix]:
    return [
        Matrix(
            name,
            part,
            place.layer,
            place.stack,
            place.expert if expert is None else expert,
            piece,
            block=place.block,
        )
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

"""What the matrices of one MLP are by their shapes, where their names say otherwise or not enough.

Of three matrices, two of one shape and one of the transposed shape, the two lead to the hidden units and the
one leads back to the residual stream: a gated MLP. Of two, one has twice as many rows as the other has
columns: gate and lower matrix in one; or one is the other's transposed shape, and the name of one tells both.
"""

from __future__ import annotations

from collections.abc import Mapping

from joma.checkpoints.families.layout import Shape, halves_in


def by_shapes(
    roles: Mapping[str, str | None], leaves: Mapping[str, str], shapes: Mapping[str, Shape]
) -> tuple[dict[str, str], dict[str, str]]:
    """Roles that the shapes of one MLP's matrices tell, and tensors whose role they deny, with the reason.

    Args:
        roles: what the names say: one of ``lower``, ``gate``, ``upper``, ``gate_and_lower``, or None.
        leaves: the names within the MLP.
        shapes: (rows, columns), or (experts, rows, columns), stored either way round.
    """
    if not any(roles.values()) or len({shape[:-2] for shape in shapes.values()}) > 1:
        return {}, {}
    sides = {name: shape[-2:] for name, shape in shapes.items()}
    if len(sides) == 2:
        return _pair_roles(sides, roles) or _is_fused(sides, roles), {}
    for rows, columns in dict.fromkeys(sides.values()):
        there = [name for name, shape in sides.items() if shape == (rows, columns)]
        back = [name for name, shape in sides.items() if shape == (columns, rows)]
        if rows != columns and len(there) == 2 and len(back) == 1:
            return _gated_roles(there, back[0], roles, leaves)
    return {}, {}


def _pair_roles(sides: Mapping[str, Shape], roles: Mapping[str, str | None]) -> dict[str, str]:
    """The role of the one of two matrices that its name does not tell, by the other's."""
    (one, shape), (other, back) = sides.items()
    unknown = [name for name in (one, other) if roles[name] is None]
    if len(unknown) != 1 or shape != back[::-1]:
        return {}
    known = roles[other if unknown[0] == one else one]
    opposite = {"lower": "upper", "upper": "lower"}.get(known or "")
    return {unknown[0]: opposite} if opposite else {}


def _is_fused(sides: Mapping[str, Shape], roles: Mapping[str, str | None]) -> dict[str, str]:
    """Where one is (2 h, d) and the other (d, h), or both transposed."""
    for wide, back in (tuple(sides), tuple(sides)[::-1]):
        (a, b), (x, y) = sides[wide], sides[back]
        units = y if x == b else x
        if x != y and ((x == b and a == 2 * y) or (y == a and b == 2 * x)) and units != (b if x == b else a):
            known = roles[wide] in ("lower", "gate_and_lower")
            return {back: "upper"} | ({} if known else {wide: "gate_and_lower"})
    return {}


def _gated_roles(
    there: list[str], back: str, roles: Mapping[str, str | None], leaves: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    if {roles[name] for name in there} == {"gate", "lower"}:
        return ({} if roles[back] == "upper" else {back: "upper"}), {}
    gates, lowers = (
        [name for name in there if half in halves_in(leaves[name])] for half in ("gate", "lower")
    )
    gate = gates[0] if len(gates) == 1 else None
    if gate is None and not gates and len(lowers) == 1:
        gate = next(name for name in there if name != lowers[0])
    if gate is None:
        which = " and ".join(repr(leaves[name]) for name in there)
        reason = f"it is of a gated MLP, and which of {which} is the gate is not known"
        return {}, dict.fromkeys([*there, back], reason)
    lower = next(name for name in there if name != gate)
    return {gate: "gate", lower: "lower", back: "upper"}, {}

"""How the matrices of one role lie in a tensor: orientation, halves, heads, experts.

Decided from sizes: the axis that is as long as the residual stream is wide, the MLP's other matrix beside,
the number and width of heads. A family's record decides only what sizes cannot (the order of halves, rows
that alternate). What neither tells is an ``UnclearError``, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from joma.checkpoints.families.names import Place
from joma.checkpoints.families.records import ANY
from joma.checkpoints.families.sizes import Sizes
from joma.core.errors import InputError

Shape = tuple[int, ...]

_READS = {
    *("lower", "gate", "gate_and_lower", "query", "key", "value", "fused", "fused_key_value"),
    *("query_down", "key_value_down"),
}
_WRITES = {"upper", "output"}
_HALVES = {"gate": "gate", "g": "gate", **dict.fromkeys(("up", "x", "u", "value"), "lower")}
"""Words in the names of an MLP's matrices -> which of the two that lead in."""
_LOWERS = ("gate_and_lower", "lower", "gate")
_CONV1D = ("c_attn", "c_fc", "c_proj", "q_attn")
_CODEGEN_SHARDS = 4
_LOWER_FIRST = ("ff_proj", "0.proj")
"""Names of gate and lower matrix in one whose lower half comes first: OLMo's, and GEGLU of diffusers."""
_GATE_FIRST = ("linear_fc1", "fc1_weight", "w12")
"""The same whose gate comes first whatever the model: Megatron's, Transformer Engine's, and w1 before w2."""
_GATE_IS_FIRST = (
    "gate and lower matrix in one, read as the gate's rows first, as most families store them; no name "
    "tells it, and the family is not known"
)


class UnclearError(InputError):
    """A tensor whose role is known and whose layout is not; the message is half a sentence."""


class UnusedError(UnclearError):
    """A tensor that its model never reads; the message is half a sentence."""


@dataclass(frozen=True)
class Piece:
    """Which rows of which axis of a tensor make one matrix, (outputs, inputs)."""

    index: int | None = None
    """Its number in a tensor of several experts."""
    stacked: int = 0
    """How many experts lie below each other in the rows of one matrix; 0: none, or along an axis of their
    own."""
    transposed: bool = False
    """Whether it is stored as (inputs, outputs)."""
    groups: int = 1
    """Its rows are taken out of each of so many equal groups, ..."""
    first: int = 0
    """... from this one ..."""
    last: int | None = None
    """... to before this one."""
    convention: str = ""
    """What was taken for granted, since neither sizes nor names tell it; half a sentence."""

    def take(self, tensor: Tensor) -> Tensor:
        """The matrix out of its tensor as read: a view where that is possible."""
        matrix = tensor.reshape(self.stacked, -1, tensor.shape[-1]) if self.stacked else tensor
        matrix = matrix if self.index is None else matrix[self.index]
        matrix = matrix.T if self.transposed else matrix
        if self.groups == 1 and self.last is None:
            return matrix
        inputs = matrix.shape[1]
        return matrix.reshape(self.groups, -1, inputs)[:, self.first : self.last].reshape(-1, inputs)


Pieces = list[tuple[str, Piece]]


def pieces_of(
    role: str, place: Place, shape: Shape, near: Mapping[str, Shape], sizes: Sizes
) -> list[tuple[str, str | None, Piece]]:
    """Role, number of the expert (None: as the name says) and piece of every matrix in a tensor.

    Args:
        role: what the name tells.
        place: what else it tells.
        shape: of the tensor.
        near: shapes of the tensors of other roles beside it, and of its ``bias``.
        sizes: of the tower it stands in.

    Raises:
        UnclearError: a layout that cannot be told.
    """
    plain = role.removeprefix("cross_")
    if role in ("key", "value") and place.layer is not None and not sizes.uses_own_keys(place.layer):
        raise UnusedError(
            f"the model never uses it: attention of layer {place.layer} reads the keys and values of an "
            "earlier one"
        )
    stacked = _experts_in(place, shape, sizes)
    rows, columns = shape[-2] // stacked if len(shape) == 2 and stacked else shape[-2], shape[-1]
    piece = Piece(
        stacked=stacked if len(shape) == 2 else 0,
        transposed=_inputs_first(plain, (rows, columns), place, near, sizes, len(shape) == 3),
    )
    outputs, inputs = (columns, rows) if piece.transposed else (rows, columns)
    parts = _parts(plain, piece, outputs, inputs, place, near, sizes)
    prefix = role.removesuffix(plain)
    named = [(f"{prefix}{name}", part) for name, part in parts]
    if not stacked:
        return [(name, None, part) for name, part in named]
    prefix = "shared." if place.expert == "shared" else ""
    return [(name, f"{prefix}{i}", replace(part, index=i)) for i in range(stacked) for name, part in named]


def _experts_in(place: Place, shape: Shape, sizes: Sizes) -> int:
    """How many experts lie in a tensor; 0: it is one matrix."""
    if len(shape) > 3 or (len(shape) == 3 and place.part == "attention"):
        raise UnclearError(f"it has {len(shape)} axes")
    if len(shape) == 3:
        if (
            place.experts
            or place.expert == "shared"
            or "moe" in place.holder.lower()
            or shape[0] == sizes.experts
        ):
            return shape[0]
        raise UnclearError("it has three axes, and nothing says that the first counts experts")
    if not place.experts or place.part not in ("mlp", "block"):
        return 0
    experts = sizes.experts
    if experts is None:
        raise UnclearError("several experts lie in one matrix, and the configuration does not say how many")
    if shape[0] % experts or (sizes.hidden is not None and shape[1] != sizes.hidden):
        raise UnclearError(f"its {shape[0]} rows are not those of {experts} experts below each other")
    return experts


def _inputs_first(
    role: str,
    shape: tuple[int, int],
    place: Place,
    near: Mapping[str, Shape],
    sizes: Sizes,
    own_axis: bool,
) -> bool:
    """Whether a matrix is stored as (inputs, outputs)."""
    rows, columns = shape
    if role not in _READS | _WRITES or place.leaf.endswith(("_exps", "_shexp")):
        return False
    hidden = sizes.hidden
    if hidden is not None and (rows == hidden) != (columns == hidden):
        return (rows == hidden) if role in _READS else (columns == hidden)
    told = _by_the_other(role, shape, near)
    if told is not None:
        return told
    if role in ("fused", "fused_key_value") and not sizes.family.conv1d and place.leaf in _CONV1D:
        return rows < columns
    if not own_axis:
        known = "model_type" in sizes.config
        if place.leaf in _CONV1D and (sizes.family.conv1d or not known):
            return sizes.family.conv1d or (place.leaf == "c_fc" and rows < columns)
        return False
    if sizes.family.experts:
        return sizes.family.experts == "inputs first"
    if role == "gate_and_lower":
        raise UnclearError(
            f"whether its {rows} or its {columns} is the width of the residual stream cannot be told; "
            "a config.json with hidden_size would"
        )
    return False


def _by_the_other(role: str, shape: tuple[int, int], near: Mapping[str, Shape]) -> bool | None:
    """What the MLP's other matrix says: the hidden units are what both have in common, the lower one perhaps
    doubled.

    Both are stored alike, so that the one's rows belong to the other's columns.
    """
    lower: Shape | None = shape
    upper: Shape | None = shape
    if role in _LOWERS:
        upper = near.get("upper")
    elif role == "upper":
        lower = next((near[r] for r in _LOWERS if r in near), None)
    else:
        return None
    if lower is None or upper is None:
        return None
    (a, b), (x, y) = lower[-2:], upper[-2:]
    outputs_first = x == b and a in (y, 2 * y)
    inputs_first = y == a and b in (x, 2 * x)
    return inputs_first if outputs_first != inputs_first else None


def _parts(
    role: str, piece: Piece, outputs: int, inputs: int, place: Place, near: Mapping[str, Shape], sizes: Sizes
) -> Pieces:
    if role in ("lower", "gate_and_lower"):
        return _mlp(role, piece, outputs, place, near, sizes)
    if role == "query":
        return _queries(piece, outputs, near, sizes)
    if role in ("key_value_up", "key_value_down"):
        return _latent(role, piece, outputs, near, sizes)
    if role in ("fused", "fused_key_value"):
        return _joint(role, piece, outputs, inputs, place, near, sizes)
    return [(role, piece)]


def _mlp(
    role: str, piece: Piece, outputs: int, place: Place, near: Mapping[str, Shape], sizes: Sizes
) -> Pieces:
    upper = near.get("upper")
    units = None if upper is None else upper[-2 if piece.transposed else -1]
    if upper is not None and len(upper) == 2 and piece.stacked:
        units = upper[0] // piece.stacked
    if units is None and role == "lower":
        units = sizes.number("ffn_hidden_size", "intermediate_size", "ffn_dim", "d_ff", "n_inner")
    if role == "lower" and (units is None or outputs != 2 * units):
        return [("lower", piece)]
    if units == outputs:  # a name that means both halves elsewhere
        return [("lower", piece)]
    if outputs % 2:
        raise UnclearError(f"{outputs} rows are no gate and lower half")
    if sizes.family.interleaved and piece.index is None and place.experts:
        half = replace(piece, groups=outputs // 2)
        return [("gate", replace(half, last=1)), ("lower", replace(half, first=1, last=2))]
    if piece.transposed and piece.index is None and place.experts and sizes.family is ANY and "bias" in near:
        raise UnclearError(
            "whether gate and lower half lie one after the other or alternate, as experts with biases have "
            "them in some families, cannot be told; a config.json with model_type would"
        )
    names = ("gate", "lower")
    told = halves_in(place.leaf)
    if (
        sizes.family.lower_first
        or place.leaf in _LOWER_FIRST
        or (sizes.family is ANY and told == names[::-1])
    ):
        names = ("lower", "gate")
    elif sizes.family is ANY and told != names and place.leaf not in _GATE_FIRST:
        piece = replace(piece, convention=_GATE_IS_FIRST)
    middle = outputs // 2
    return [(names[0], replace(piece, last=middle)), (names[1], replace(piece, first=middle, last=outputs))]


def halves_in(leaf: str) -> tuple[str, ...]:
    """Which of ``gate`` and ``lower`` a name within an MLP tells, in its order: both, of the two in one."""
    found = (_HALVES.get(word) for word in re.findall("[a-z]+", leaf.lower()))
    return tuple(half for half in found if half)


def _queries(piece: Piece, outputs: int, near: Mapping[str, Shape], sizes: Sizes) -> Pieces:
    """Queries, without the output gate that some families put beside them."""
    heads, width = sizes.heads, sizes.query_width
    output = near.get("output")
    read = output[1] if output is not None and len(output) == 2 and not piece.transposed else None
    expected = heads * width if heads and width else read
    if expected is None or read == outputs or outputs != 2 * expected:
        return [("query", piece)]
    if heads is None or not (sizes.family.gated_queries or sizes.flag("attn_output_gate")):
        raise UnclearError(
            f"its {outputs} rows are twice those of all query heads ({expected}): which are a gate is not "
            "known"
        )
    return [("query", replace(piece, groups=heads, last=expected // heads))]


def _latent(role: str, piece: Piece, outputs: int, near: Mapping[str, Shape], sizes: Sizes) -> Pieces:
    """Latent attention's rows of keys and of values, of latents and of rotary keys."""
    if role == "key_value_up":
        heads, keys, values = sizes.heads, sizes.number("qk_nope_head_dim"), sizes.number("v_head_dim")
        if not (heads and keys and values and heads * (keys + values) == outputs):
            return [(role, piece)]
        return [
            ("key_up", replace(piece, groups=heads, last=keys)),
            ("value_up", replace(piece, groups=heads, first=keys, last=keys + values)),
        ]
    up = near.get("key_value_up")
    rank = sizes.number("kv_lora_rank") or (up[-1] if up is not None else None)
    if rank is None:
        raise UnclearError("how many of its rows are latents and how many rotary keys is not known")
    if rank >= outputs:
        return [(role, piece)]
    return [
        (role, replace(piece, last=rank)),
        ("key_rotary", replace(piece, first=rank, last=outputs)),
    ]


def _joint(
    role: str, piece: Piece, outputs: int, inputs: int, place: Place, near: Mapping[str, Shape], sizes: Sizes
) -> Pieces:
    """Queries, keys and values in one tensor; whole where their layout is not known."""
    queries_apart = "query" in near or "cross_query" in near
    if role == "fused_key_value" or (queries_apart and outputs == 2 * inputs):
        if role == "fused" or place.leaf == "to_kv":
            return _cut(piece, 1, [("key", outputs // 2), ("value", outputs // 2)])
        return [("key_value", piece)]
    by_name = {"query_key_value": "heads", "wqkv": "groups", "linear_qkv": "groups", "attn_qkv": "blocks"}
    joint: str = sizes.family.joint or by_name.get(place.leaf, "blocks")
    if place.leaf == "attn_qkv":  # llama.cpp reorders what it converts
        joint = "blocks"
    heads, pairs = sizes.heads, sizes.pairs
    if joint == "codegen":
        size, rest = divmod(outputs, 3 * _CODEGEN_SHARDS)
        if not rest:
            return _cut(piece, _CODEGEN_SHARDS, [("query", size), ("value", size), ("key", size)])
    if joint == "falcon":
        joint = "groups" if sizes.flag("new_decoder_architecture") else "blocks"
        if joint == "blocks":
            joint, pairs = ("blocks", 1) if sizes.flag("multi_query", True) else ("heads", pairs)
    if joint == "bigcode":
        joint, pairs = ("blocks", 1) if sizes.flag("multi_query", True) else ("heads", pairs)
    if heads is None or pairs is None:
        if joint == "blocks" and outputs == 3 * inputs:
            return _cut(piece, 1, [(name, inputs) for name in ("query", "key", "value")])
        return [("query_key_value", piece)]
    if joint == "heads":
        pairs = heads
    size, rest = divmod(outputs, heads + 2 * pairs)
    if rest or heads % pairs or (sizes.head_width is not None and size != sizes.head_width):
        return [("query_key_value", piece)]
    if joint in ("heads", "groups"):
        return _cut(piece, pairs, [("query", size * heads // pairs), ("key", size), ("value", size)])
    return _cut(piece, 1, [("query", size * heads), ("key", size * pairs), ("value", size * pairs)])


def _cut(piece: Piece, groups: int, sizes: list[tuple[str, int]]) -> Pieces:
    parts: Pieces = []
    first = 0
    for name, size in sizes:
        parts.append((name, replace(piece, groups=groups, first=first, last=first + size)))
        first += size
    return parts

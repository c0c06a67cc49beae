"""From the tensors that a checkpoint stores to the weights that its model multiplies by.

What is stored is seldom all of a weight: quantised values have their scales beside them, pruned ones a mask,
normalised ones a gain, adapted ones two factors. All that belongs to one weight is gathered here by name,
once, before anything is read; what is not understood gives a weight with a ``problem`` in place of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from joma.checkpoints.families.names import canonical
from joma.checkpoints.families.sizes import Config
from joma.checkpoints.formats.shard import TensorEntry
from joma.checkpoints.scales import apply_scale, block_sizes, companion, decode_mxfp4, is_quantised, spread
from joma.checkpoints.siblings import find_unexplained
from joma.core.errors import InputError

Shape = tuple[int, ...]
Compose = Callable[[list[Tensor]], Tensor]

GATHER = (
    "it holds no numbers: training with ZeRO-3 (DeepSpeed) or FSDP kept them elsewhere; gather them first "
    "(zero_to_fp32.py in a DeepSpeed folder, or save the full state dict)"
)
_PARAMETRIZED = re.compile(r"(.*)\.parametrizations\.(\w+)\.(original\d*|\d+\.\w+)")
_OLD_STYLE = re.compile(r"(.*(?:^|[._])weight)_(orig|mask|u|v|g)")
_PACKED = (".qweight", ".weight_packed", "_blocks")


@dataclass(frozen=True)
class Weight:
    """One weight as its model uses it, and the stored tensors that it is made of."""

    name: str
    """As stored; without wrappers where it is made of several tensors."""
    shape: Shape
    dtype: str
    """As stored."""
    parts: tuple[str, ...] = ()
    """Names of the stored tensors, in the order that ``compose`` takes them in."""
    compose: Compose | None = None
    """None: the one tensor itself."""
    problem: str = ""
    """Why it has no numbers here: half a sentence."""


def weights_in(entries: Mapping[str, TensorEntry], config: Config | None) -> dict[str, Weight]:
    """Every weight of a checkpoint by its name, and beside them whatever tensor belongs to none.

    Args:
        entries: name, shape and type of what is stored.
        config: the model's settings, which may state the size of blocks that share a scale.
    """
    groups, loose = _groups(entries)
    blocks = block_sizes(config)
    strange = find_unexplained(entries, loose, blocks)
    found: dict[str, Weight] = {}
    for name in loose:
        weight = _plain(entries[name])
        beside = groups.pop(canonical(name), {}) | groups.pop(_module(canonical(name)), {})
        if not is_quantised(weight.dtype):  # what only resembles scales is a tensor of its own
            found |= {
                other: _plain(entries[other]) for other in beside.values() if not _of_weight(other, name)
            }
        weight = _with_companions(weight, beside, entries, blocks)
        if name in strange and not weight.problem:
            weight = replace(weight, problem=strange[name])
        found[weight.name] = weight
    for name, beside in groups.items():
        composed = _compose_weight(name, beside, entries)
        parts = [_plain(entries[other]) for other in beside.values()] if composed is None else [composed]
        found |= {weight.name: weight for weight in parts}
    return found


def _module(name: str) -> str:
    """The module that a weight belongs to; nothing shares this key with a bare parameter."""
    return name.removesuffix("weight") if name.endswith(".weight") else "\0"


def _of_weight(other: str, name: str) -> bool:
    """Whether a tensor's own name says that it is the weight's: ``a.weight_scale`` beside ``a.weight``."""
    stem = canonical(name).removesuffix("weight")
    return "weight" in canonical(other).removeprefix(stem)


def _groups(entries: Mapping[str, TensorEntry]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Names of parts by the weight (``a.weight``) or the module (``a.``) they belong to, and all others."""
    groups: dict[str, dict[str, str]] = {}
    loose: list[str] = []
    plain = {canonical(name) for name in entries}
    for name in entries:
        whole = canonical(name)
        owner = _part_of(whole)
        if owner is None:
            owner = _neighbour_of(whole, plain)
        if owner is None:
            loose.append(name)
        else:
            groups.setdefault(owner[0], {})[owner[1]] = name
    return groups, loose


def _part_of(name: str) -> tuple[str, str] | None:
    """The weight that a tensor is a part of, and which part."""
    if found := _PARAMETRIZED.fullmatch(name):
        return f"{found[1]}.{found[2]}", f"parametrization.{found[3]}"
    if found := _OLD_STYLE.fullmatch(name):
        return found[1], f"hook.{found[2]}"
    for suffix in _PACKED:
        if name.endswith(suffix):
            return name.removesuffix(suffix) + ("" if suffix == "_blocks" else ".weight"), suffix
    if name.endswith("_scales"):
        return name.removesuffix("_scales"), "_scales"
    stem, _, factor = name.partition(".lora_")
    if factor:
        return f"{stem}.weight", f"lora_{factor}"
    return None


def _neighbour_of(name: str, all_names: set[str]) -> tuple[str, str] | None:
    """The weight or module that a scale or its like stands beside."""
    if name.endswith(".weight"):
        return None
    for at in range(len(name) - 1, 0, -1):
        if name[at] not in "._":
            continue
        stem, rest = name[:at], name[at:]
        if stem in all_names and not stem.endswith(("bias", "norm.weight")) and companion(rest):
            return stem, rest
        if {f"{stem}.qweight", f"{stem}.weight_packed"} & all_names and companion(rest):
            return f"{stem}.weight", rest
        if f"{stem}.weight" in all_names and rest != ".weight" and companion(rest):
            return f"{stem}.", rest
    return None


def _plain(entry: TensorEntry) -> Weight:
    problem = entry.problem or (GATHER if 0 in entry.shape else "")
    return Weight(entry.name, entry.shape, entry.dtype, (entry.name,), problem=problem)


def _with_companions(
    weight: Weight,
    beside: Mapping[str, str],
    entries: Mapping[str, TensorEntry],
    blocks: tuple[int, ...] | None,
) -> Weight:
    if weight.problem:
        return weight
    factors = {rest: name for rest, name in beside.items() if rest.startswith("lora_")}
    if factors:
        return replace(
            weight, problem="an adapter stands beside it, whose scale (adapter_config.json) is not here"
        )
    kinds = {rest: "scale" if rest == "_scales" else companion(rest) for rest in beside}
    of = {kind: [beside[rest] for rest in beside if kinds[rest] == kind] for kind in set(kinds.values())}
    named = ", ".join(repr(name) for name in beside.values())
    if not is_quantised(weight.dtype):
        doubtful = [other for other in beside.values() if _of_weight(other, weight.name)]
        if doubtful:
            return replace(
                weight,
                problem=f"what {doubtful[0]!r} beside values of type {weight.dtype} means is not known",
            )
        return weight
    if of.get("strange"):
        return replace(weight, problem=f"it is quantised in a way that is not known (beside it: {named})")
    scales, rows, zeros = of.get("scale", []), of.get("rows", []), of.get("zero", [])
    eight_bits = weight.dtype.startswith(("F8", "float8"))
    if not scales and not rows:
        if eight_bits:
            return weight
        return replace(weight, problem=f"it is stored as {weight.dtype}, and no scale stands beside it")
    if len(scales) + len(rows) > 1 or len(zeros) > 1:
        return replace(weight, problem=f"several scales stand beside it ({named})")
    signed = weight.dtype in ("I8", "int8")
    if not (eight_bits or signed or (zeros and weight.dtype in ("U8", "uint8"))):
        return replace(
            weight, problem=f"how values are packed into {weight.dtype} is not known (beside it: {named})"
        )
    scale = entries[(scales + rows)[0]]
    if is_quantised(scale.dtype) and scale.dtype not in ("F8_E8M0", "float8_e8m0fnu"):
        return replace(weight, problem=f"its scale {scale.name!r} is itself quantised ({scale.dtype})")
    try:
        for part in (scale, *(entries[zero] for zero in zeros)):
            spread(part.shape, weight.shape, blocks)
    except InputError as error:
        return replace(weight, problem=f"{error} ({scale.name!r})")
    divisor = 127.0 if rows else 1.0

    def compose(tensors: list[Tensor]) -> Tensor:
        values, by, *zero = tensors
        return apply_scale(values, by.float() / divisor, blocks, zero[0] if zero else None)

    return replace(weight, parts=(*weight.parts, scale.name, *zeros), compose=compose)


def _compose_weight(
    name: str, beside: Mapping[str, str], entries: Mapping[str, TensorEntry]
) -> Weight | None:
    """A weight of which only parts are stored."""
    name = name[:-1] + ".weight" if name.endswith(".") else name
    shape_of = {part: entries[stored].shape for part, stored in beside.items()}
    first = next(iter(beside.values()))
    weight = Weight(name, entries[first].shape, entries[first].dtype)

    def make_weight(shape: Shape, parts: Iterable[str], compose: Compose) -> Weight:
        names = tuple(beside[part] for part in parts)
        problem = next((p for n in names if (p := _plain(entries[n]).problem)), "")
        return Weight(name, shape, entries[names[0]].dtype, names, compose, problem)

    for style, prefix in (("hook.", "hook."), ("parametrization.", "parametrization.0.")):
        orig = "hook.orig" if style == "hook." else "parametrization.original"
        gain, direction = (
            ("hook.g", "hook.v")
            if style == "hook."
            else ("parametrization.original0", "parametrization.original1")
        )
        left, right = (f"{prefix}u", f"{prefix}v") if style == "hook." else (f"{prefix}_u", f"{prefix}_v")
        names = set(beside)
        if names == {orig, "hook.mask"}:
            return make_weight(shape_of[orig], (orig, "hook.mask"), lambda t: t[0].float() * t[1].float())
        if names == {orig, left, right}:
            return make_weight(shape_of[orig], (orig, left, right), _spectrally_normalised)
        if names == {gain, direction} and _is_gain(shape_of[gain], shape_of[direction]):
            return make_weight(shape_of[direction], (direction, gain), _weight_normalised)
    if set(beside) == {"_blocks", "_scales"} and shape_of["_blocks"][:-1] == shape_of["_scales"]:
        *outer, rows, groups, width = shape_of["_blocks"]
        # As transformers unpacks them: inputs first.
        return make_weight(
            (*outer, groups * width * 2, rows),
            ("_blocks", "_scales"),
            lambda tensors: decode_mxfp4(tensors[0], tensors[1]).mT,
        )
    main = next(
        (part for part in (*_PACKED, "hook.orig", "parametrization.original") if part in beside), None
    )
    if main is None:
        if not any(part.startswith(("hook.", "parametrization.")) for part in beside):
            return None
        main = next(iter(beside))
    weight = replace(weight, shape=shape_of[main], dtype=entries[beside[main]].dtype)
    if main in _PACKED:
        problem = (
            f"packed quantised weights ({beside[main]}), which are not the matrix itself: save the model "
            "dequantised, or as GGUF"
        )
    else:
        problem = (
            f"it is parametrised in a way that is not known (stored as {', '.join(sorted(beside.values()))})"
        )
    return replace(weight, problem=problem)


def _is_gain(gain: Shape, direction: Shape) -> bool:
    """Whether one tensor can be the norms of another along one axis, as weight normalisation keeps them."""
    if all(side == 1 for side in gain):
        return True
    return (
        len(gain) == len(direction)
        and all(g in (1, d) for g, d in zip(gain, direction, strict=True))
        and sum(g != 1 for g in gain) == 1
    )


def _weight_normalised(tensors: list[Tensor]) -> Tensor:
    """g v / |v|, the norm over all axes along which g has one entry (Salimans and Kingma 2016)."""
    direction, gain = (tensor.float() for tensor in tensors)
    one = gain.numel() == 1
    axes = list(range(direction.ndim)) if one else [i for i, side in enumerate(gain.shape) if side == 1]
    gain = gain.reshape(()) if one else gain
    size = torch.linalg.vector_norm(direction, dim=axes, keepdim=True)
    weight: Tensor = direction * gain / size
    return weight


def _spectrally_normalised(tensors: list[Tensor]) -> Tensor:
    """W / (u W v), u and v as training left them (Miyato et al. 2018)."""
    weight, left, right = (tensor.float() for tensor in tensors)
    matrix = weight.flatten(1)
    if matrix.shape != (len(left), len(right)):
        matrix = matrix.T
    if matrix.shape != (len(left), len(right)):
        raise InputError("the vectors of its spectral normalisation do not fit it")
    return weight / (left @ matrix @ right)

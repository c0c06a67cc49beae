"""Where in a model a weight stands, as its name tells: layer, stack, expert, and the part it belongs to.

Names are read part by part. What wraps a module (DistributedDataParallel's ``module``, torch.compile's
``_orig_mod``, PEFT's ``base_model.model``, ...) is dropped wherever it occurs. A weight belongs to the
attention or to the MLP of its layer only if *every* part of its name between the layer's number and its own
name is one of those: the small MLP of a router or the keys of an indexer are parts of something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Part = Literal["attention", "mlp", "block", "outside", "other"]

_WRAPPERS = {
    *("module", "base_layer", "orig_mod", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"),
    *("_forward_module", "_original_module", "_fpw_module", "_module"),
}
"""What PyTorch, DeepSpeed, Lightning, Opacus and PEFT put around a module. Any other part that begins with an
underscore is a module of the model: ``_encoder`` and ``_decoder`` are two."""
_IDLE_PREFIXES = {"model", "transformer", "gpt_neox", "base_model"}
_PLAIN_CONTAINERS = re.compile(r"layers?|h|blocks?|blk|albert_layers|attentions|ffns")
_NUMBERED_LAYER = re.compile(r"(layers?|h|blocks?|blk)_?(\d+)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_KINDS = (
    "self|cross|inner|local|transient|global|causal|window|masked|multi|head|multihead|rel|relative|image|text|vision"
    "|audio|token|spatial|temporal|encoder|decoder|enc|dec|encdec|bidirectional|full|sliding"
)
_ATTENTION = re.compile(rf"(?:(?:{_KINDS})_?)*(?:attn|attention|att|attends?|mha)s?(?:_\w+_to_\w+)?")
_MLP = re.compile(
    r"(?:(?:shared|routed|local|dense|text|vision|audio|image|sparse|block|conv)_?)*"
    r"(?:mlp|ffn|ffw|ff|feed_?forward|moe|experts?|dense_relu_dense|dense_gated_act_dense|dense_act_dense)s?"
    r"(?:_?\d+|_macaron|_moe|_block)?"
)
# Parts that only hold others, within attention, within an MLP, and right in a block.
_HOLDERS = {
    "mixer",
    "shared_transf",
    "shared_transformer",
    "self",
    "output",
    "intermediate",
    "layer",
    "net",
    "intermediate_query",
    "output_query",
}
_EXPERTS = re.compile(r"(?:\w+_)?experts?(?:_list)?")
_ONE_EXPERT = re.compile(r"[A-Za-z_]*?(\d+)")
_NUMBERED_EXPERT = re.compile(r"(?:\w+_)?experts?_?(\d+)")
_SHARED = re.compile(r"\w*shared_\w*experts?|\w*_shexp")
_LONGEST_PART = 64
"""Characters; a longer part names nothing, and "multihead" a hundred times over would be read for ever."""
_CROSS = re.compile(r"cross|enc_?dec_?att|encoder_(decoder_)?att|multihead_attn")


@dataclass(frozen=True)
class Place:
    """What a tensor's name says of where it stands."""

    part: Part
    """``block``: right in its layer; ``outside``: in no layer; ``other``: within a part that is neither the
    layer's attention nor its MLP."""
    leaf: str
    """The name within that part: ``q_proj``, ``output.dense``, ``experts.gate_up_proj`` without its
    ``experts``."""
    holder: str
    """The name without its leaf: tensors of one holder are siblings."""
    layer: int | None = None
    stack: str = ""
    """What tells apart layers of one number: ``encoder``, ``decoder``, ``vision_model.encoder``, ..."""
    expert: str = ""
    """Number of the expert, ``shared``, or nothing."""
    experts: bool = False
    """Whether the name speaks of experts without a number: several may lie in one tensor."""
    cross: bool = False
    block: str = ""
    """The name of the layer as it stands (wrappers included): ``model.layers.3``."""
    module: str = ""
    """The attention or MLP it belongs to, without wrappers: ``model.layers.3.mlp``; else its layer."""


def canonical(name: str) -> str:
    """A tensor's name without wrappers: ``model.layers.0.mlp.up_proj.weight``."""
    parts = name.split(".")
    return ".".join(parts[i] for i in _own_parts(parts))


def _own_parts(parts: list[str]) -> list[int]:
    """The positions of the parts that are no wrappers. The last one names the tensor itself and stays."""
    kept: list[int] = []
    skip = False
    for i, part in enumerate(parts):
        if skip:
            skip = False
            continue
        last = i == len(parts) - 1
        pair = part == "modules_to_save" or (part == "base_model" and not last and parts[i + 1] == "model")
        if not last and pair:  # with the adapter's name, or the model's
            skip = i < len(parts) - 2
        elif last or part not in _WRAPPERS:
            kept.append(i)
    return kept


def _snake(part: str) -> str:
    return _CAMEL.sub("_", part).lower()


def _kind(part: str) -> Part | None:
    if len(part) > _LONGEST_PART:
        return None
    plain = _snake(part)
    if _MLP.fullmatch(plain):
        return "mlp"
    return "attention" if _ATTENTION.fullmatch(plain) else None


def _is_container(parts: list[str], i: int) -> bool:
    """Whether the part at ``i`` numbers layers although it speaks of attention or MLPs (XLM's
    ``attentions.3``). Behind another number its own counts the parts of one layer (``layers.3.mlps.1``)."""
    numbered = i + 2 < len(parts) and parts[i + 1].isdigit() and not any(p.isdigit() for p in parts[1:i])
    return numbered and parts[i].endswith("s") and not _EXPERTS.fullmatch(_snake(parts[i]))


@lru_cache(maxsize=65536)
def locate(name: str) -> Place:
    """Read a tensor's name by itself; ``families.places.places_of`` reads it among others."""
    return readings(name)[0]


@lru_cache(maxsize=65536)
def readings(name: str) -> tuple[Place, ...]:
    """What a tensor's name may say: where two of its numbers may be the layer's, the inner one first.

    The inner number is a layer's in ``layers.1.blocks.0.mlp`` (of stage 1), and counts parts of layer 3 in
    ``group.3.layer.0.attention``.
    """
    raw = name.split(".")
    numbered = [piece for i in _own_parts(raw) for piece in _with_number(raw, i)]
    parts, sources = [part for part, _ in numbered], [i for _, i in numbered]
    if parts[-1] in ("weight", "original", "weight_orig") and len(parts) > 1:
        parts = parts[:-1]
    if parts[-1] == "linear" and len(parts) > 2:  # a linear layer that clips or pads, around the real one
        parts = parts[:-1]
    first = next(
        (i for i in range(len(parts) - 1) if _kind(parts[i]) and not _is_container(parts, i)), len(parts) - 1
    )
    numbers = [i for i in range(1, first) if parts[i].isdigit()]
    if not numbers:
        holder = ".".join(parts[:-1])
        return (Place("outside", parts[-1], holder, module=holder),)
    inner = _reading(raw, parts, sources, numbers[-1], numbers[-1] + 1)
    if len(numbers) == 1:
        return (inner,)
    at = numbers[-2]
    if parts[numbers[-1] - 1] == "layer" and any(parts[i - 1] == "block" for i in numbers):  # T5's
        at = next(i for i in numbers if parts[i - 1] == "block")
        return (_reading(raw, parts, sources, at, numbers[-1] + 1),)
    return inner, _reading(raw, parts, sources, at, numbers[-1] + 1)


def _with_number(raw: list[str], i: int) -> list[tuple[str, int]]:
    """A part with its position; ``layer_3`` and ``blocks3`` are a container and a number."""
    inside = i < len(raw) - 1 and not raw[i + 1].isdigit()
    told = _NUMBERED_LAYER.fullmatch(raw[i]) if inside else None
    return [(raw[i], i)] if told is None else [(told[1], i), (told[2], i)]


def _reading(raw: list[str], parts: list[str], sources: list[int], at: int, begin: int) -> Place:
    """The place where the number ``at`` is the layer's and what is inside the layer begins at ``begin``."""
    inside = parts[begin:]
    container = at - 1
    while container > 0 and parts[container].isdigit():
        container -= 1
    outer = [p for p in parts[:container] if p not in _IDLE_PREFIXES]
    if at - container > 1:  # stages that are numbered twice: block.2.0
        outer += parts[container:at]
    elif not _PLAIN_CONTAINERS.fullmatch(parts[container]):
        outer.append(parts[container])
    part, leaf, depth = _inside(inside, parts[container])
    plain = [_snake(p) for p in inside]
    expert, several = _expert(inside, plain)
    return Place(
        part=part,
        leaf=leaf,
        holder=".".join(parts[:-1]),
        layer=int(parts[at]),
        stack=".".join(outer),
        expert=expert,
        experts=several,
        cross=any(_CROSS.search(p) for p in plain[:-1]),
        block=".".join(raw[: sources[at] + 1]),
        module=".".join(parts[: begin + depth] if depth else parts[: at + 1]),
    )


def _inside(inside: list[str], container: str) -> tuple[Part, str, int]:
    """Which part of its layer a weight belongs to, its name there, and how many parts name that part."""
    *path, leaf = inside
    part: Part = "block"
    if container.endswith("s") and (kind := _kind(container)) is not None and container not in ("h",):
        part = kind
    leaves = [leaf]
    depth = 0
    for i, above in enumerate(path):
        plain = _snake(above)
        experts = _NUMBERED_EXPERT.fullmatch(plain) or (part == "mlp" and _EXPERTS.fullmatch(plain))
        kind = _kind(above) or ("mlp" if experts else None)
        if kind is not None:
            # BERT's ``attention.output`` stays attention; experts within an MLP are its own.
            if part not in ("block", kind):
                return "other", leaf, depth
            part = kind
            leaves = [leaf]
            depth = i + 1
        elif depth == i and i and (above.isdigit() or _is_expert(path, i)):
            depth = i + 1  # one of several: mlps.1, experts.7, experts.e7
        elif above in _HOLDERS or (above.isdigit() and part != "attention"):
            if above in ("output", "intermediate", "output_query", "intermediate_query"):
                leaves = [above, leaf]
            elif above.isdigit() and i == len(path) - 1:
                leaves = [above, leaf]  # a layer of nn.Sequential with a matrix inside: net.0.proj
        else:
            return "other", leaf, depth
    return part, ".".join(leaves), depth


def _is_expert(path: list[str], i: int) -> bool:
    """Whether a part behind the word experts tells one of them by its number: ``experts.e7``."""
    return bool(_EXPERTS.fullmatch(_snake(path[i - 1])) and _ONE_EXPERT.fullmatch(path[i]))


def _expert(inside: list[str], plain: list[str]) -> tuple[str, bool]:
    """The expert's number or ``shared``, and whether experts are spoken of without a number."""
    if any(_SHARED.fullmatch(p) for p in plain):
        return "shared", False
    several = plain[-1].endswith("_exps")
    for i, part in enumerate(plain):
        if numbered := _NUMBERED_EXPERT.fullmatch(part):
            return numbered.group(1), False
        if _EXPERTS.fullmatch(part):
            if i + 1 < len(plain) - 1 and (own := _ONE_EXPERT.fullmatch(inside[i + 1])):
                return own[1], False
            several = True
        several = several or "moe" in part
    return "", several

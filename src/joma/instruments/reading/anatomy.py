"""Where in a living model the parts are: each block's hidden neurons, attention, matrices and norms.

By the names of the parameters (``joma.checkpoints.families.matrices``), the modules that hold them, and, for
norms, the names and flags of the families. No forward pass is run. What a name does not tell stays None,
and the block's ``remarks`` say so; what a block has in a form that is not supported (experts, latent
attention) is None too, with the reason in ``mlp_problem`` and ``attention_problem``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import nn

from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.families.matrices import Matrix, find_matrices
from joma.checkpoints.families.records import Family
from joma.checkpoints.families.sizes import Config, config_of, sizes_for, whole
from joma.checkpoints.in_memory import weights_of
from joma.core.errors import InputError

_HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads", "attention_heads")
_IS_NORM = re.compile(r"norm", re.IGNORECASE)
_INSIDE_ATTENTION = re.compile(
    r"(^|[._])(q|k|v|qk|kv|q_a|kv_a|query|key|value|inner_attn)_?(layer_?norm|norm|ln)$|_a_layernorm$"
)

# Ends of names: what attention reads, and what the MLP reads, in blocks that normalise before. First wins.
_BEFORE_ATTENTION = (
    r"input_layernorm|ln_1|ln1|norm_1|norm1|layernorm_before|attn_norm|attention_norm|self_attn_layer_norm"
    r"|operator_norm|input_norm|ln_attn|pre_attention_layernorm|attention_layernorm|layer\.0\.layer_norm"
)
_BEFORE_MLP = (
    r"pre_feedforward_layernorm|pre_mlp_layernorm",
    r"ln_2|ln2|norm_2|norm2|layernorm_after|mlp_norm|ffn_norm|ln_mlp|ffn_layernorm|feed_forward_layernorm",
    r"post_attention_layernorm|final_layer_norm|layer\.[12]\.layer_norm",
)
# Ends of names that are normalisations after the residual addition wherever they occur: BERT's descendants,
# DistilBERT, MPNet and ALBERT.
_AFTER_ATTENTION = r"attention\.output\.LayerNorm|attention\.LayerNorm|sa_layer_norm"
_AMBIGUOUS = r"self_attn_layer_norm|encoder_attn_layer_norm|attention_norm"


class _Mlp(TypedDict, total=False):
    lower: str
    gate: str | None
    upper: str
    lower_matrix: Matrix
    gate_matrix: Matrix | None


class _Attention(TypedDict, total=False):
    attention: str
    value_reader: str
    value_matrix: Matrix
    output_matrix: Matrix
    heads: int
    key_value_heads: int
    head_width: int


class _Norms(TypedDict, total=False):
    attention_norm: str | None
    output_norm: str | None
    mlp_norm: str | None
    parallel: bool


@dataclass(frozen=True, kw_only=True)
class Block:
    """The parts of one block. Names are those of ``model.named_modules()``."""

    layer: int
    """0-based, in its stack."""
    stack: str
    """Nothing, or ``encoder``, ``decoder``, ... where a model has layers of one number more than once."""
    name: str
    """The block itself: ``model.layers.3``."""

    lower: str | None = None
    """The module whose forward input is what the hidden neurons read (after the norm)."""
    gate: str | None = None
    """In a gated MLP, the module that holds the gate: neurons are ``act(gate) * lower``. It is ``lower``
    itself where both are one tensor."""
    upper: str | None = None
    """The module whose forward *input* is the neurons' activations."""
    lower_matrix: Matrix | None = None
    """(neurons, width)."""
    gate_matrix: Matrix | None = None
    """(neurons, width), None where there is no gate."""

    attention: str | None = None
    """The module that computes self attention: the owner that ``joma.watch`` names."""
    value_reader: str | None = None
    """The module whose forward input is what the values are made of (after the norm), ``u_l``: the value
    projection, or for ``nn.MultiheadAttention`` the attention itself."""
    value_matrix: Matrix | None = None
    """(key_value_heads * head_width, width), head by head."""
    output_matrix: Matrix | None = None
    """(width, heads * head_width), head by head."""
    heads: int | None = None
    key_value_heads: int | None = None
    """Head h reads the values of group ``h // (heads // key_value_heads)``."""
    head_width: int | None = None

    attention_norm: str | None = None
    """The norm of this block whose output attention reads; None where attention reads the residual stream
    as it is (blocks that normalise after the addition)."""
    output_norm: str | None = None
    """A norm of attention's output before it is added to the residual stream (Gemma 2, OLMo 2)."""
    mlp_norm: str | None = None
    """The norm whose output the hidden neurons read. In a block that normalises after the addition (BERT,
    the paper's decoder) that is the norm behind attention."""
    parallel: bool = False
    """Whether the MLP reads what attention reads, not what attention wrote (GPT-J, Phi, most of Pythia)."""

    mlp_problem: str = ""
    """Why ``lower`` is None: experts, or no MLP known by name."""
    attention_problem: str = ""
    """Why ``value_matrix`` is None: latent attention, normalised values, no attention known by name."""
    remarks: tuple[str, ...] = ()
    """What could not be told and was left None."""


def find_blocks(model: nn.Module, weights: Checkpoint | None = None) -> list[Block]:
    """The blocks of a model, stack by stack and layer by layer.

    Raises:
        InputError: a model in which no block has an MLP or an attention that is known by its name.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"find_blocks(model) got a {type(model).__name__}; give a torch.nn.Module.")
    config = config_of(model)
    # Tied matrices (ALBERT's layers) count under their first name; one never read stays unmentioned.
    entries = (weights or weights_of(model)).weights
    shapes = {name: weight.shape for name, weight in entries.items()}
    found: dict[str, list[Matrix]] = {}
    for matrix in find_matrices(shapes, config):
        if matrix.block:
            found.setdefault(matrix.block, []).append(matrix)
    modules = dict(model.named_modules())
    blocks = [_block(prefix, matrices, modules, shapes, config) for prefix, matrices in found.items()]
    if not any(block.lower or block.value_matrix for block in blocks):
        problems = {p for b in blocks for p in (b.mlp_problem, b.attention_problem) if p}
        why = "; ".join(sorted(problems)) or "none of its parameters has the name of a block's matrix"
        raise InputError(
            f"no MLP and no attention was found in {type(model).__name__}: {why}. Give a transformer whose "
            "parameters are named as transformers, PyTorch or joma name them."
        )
    return blocks


def _holder(tensor: str) -> str:
    """The module that holds a tensor."""
    return tensor.rpartition(".")[0]


def _block(
    name: str,
    matrices: list[Matrix],
    modules: dict[str, nn.Module],
    shapes: Mapping[str, tuple[int, ...]],
    config: Config,
) -> Block:
    remarks: list[str] = []
    first = matrices[0]
    assert first.layer is not None
    mlp, mlp_problem = _mlp(name, matrices, remarks)
    attention, attention_problem = _attention(name, matrices, modules, shapes, config)
    norms = _norms(name, modules, config, remarks) if mlp and attention else _Norms()
    return Block(
        layer=first.layer,
        stack=first.tower,
        name=name,
        mlp_problem=mlp_problem,
        attention_problem=attention_problem,
        remarks=tuple(remarks),
        **mlp,
        **attention,
        **norms,
    )


def _mlp(name: str, matrices: list[Matrix], remarks: list[str]) -> tuple[_Mlp, str]:
    by_role: dict[str, list[Matrix]] = {}
    for matrix in matrices:
        by_role.setdefault(matrix.role, []).append(matrix)
    experts = {m.expert for role in ("lower", "gate", "upper") for m in by_role.get(role, []) if m.expert}
    if experts:
        return {}, (
            f"the MLP of {name} is a mixture of {len(experts)} experts, whose neurons see only the tokens "
            "routed to them; that is not supported"
        )
    lowers, uppers, gates = (by_role.get(role, []) for role in ("lower", "upper", "gate"))
    if len(lowers) != 1 or len(uppers) != 1 or len(gates) > 1:
        counts = f"{len(lowers)} lower, {len(gates)} gate and {len(uppers)} upper matrices"
        return {}, f"{name} has {counts} by their names, not one MLP"
    lower, upper = lowers[0], uppers[0]
    gate = gates[0] if gates else None
    return {
        "lower": _holder(lower.tensor),
        "gate": None if gate is None else _holder(gate.tensor),
        "upper": _holder(upper.tensor),
        "lower_matrix": lower,
        "gate_matrix": gate,
    }, ""


def _attention(
    name: str,
    matrices: list[Matrix],
    modules: dict[str, nn.Module],
    shapes: Mapping[str, tuple[int, ...]],
    config: Config,
) -> tuple[_Attention, str]:
    by_role: dict[str, Matrix] = {}
    for matrix in matrices:
        by_role.setdefault(matrix.role, matrix)
    value, output = by_role.get("value"), by_role.get("output")
    if value is None or output is None:
        latent = by_role.get("value_up", by_role.get("key_value_up"))
        if latent is not None:
            return {"attention": _holder(_holder(latent.tensor))}, (
                f"{name} has latent attention: a norm stands within its value matrix"
            )
        if "query_key_value" in by_role:
            return {}, f"{name} has queries, keys and values in one tensor of unknown layout"
        return {}, f"{name} has no value and output matrix of self attention by their names"
    attention = _holder(value.tensor)
    reader = attention
    if value.tensor.rpartition(".")[2] == "weight":  # a projection's, not nn.MultiheadAttention's own
        attention = _holder(attention)
    norm_of_values = [
        n for n in modules if n.startswith(attention + ".") and re.search(r"(^|\.)(v|value)_norm$", n)
    ]
    if norm_of_values:
        return {"attention": attention}, f"{norm_of_values[0]} normalises values: they are not linear in u_l"
    heads = _heads(attention, modules, config)
    outputs = shapes[output.tensor]
    inputs = outputs[0] if output.transposed else outputs[-1]
    rows = _rows(value, shapes[value.tensor])
    if heads is None:
        return {"attention": attention}, f"neither {attention} nor a configuration says how many heads it has"
    width, remainder = divmod(inputs, heads)
    if remainder or rows % width or heads % max(rows // width, 1):
        return {"attention": attention}, (
            f"{attention}: value matrix of {rows} rows and output matrix of {inputs} columns do not fit "
            f"{heads} heads"
        )
    return {
        "attention": attention,
        "value_reader": reader,
        "value_matrix": value,
        "output_matrix": output,
        "heads": heads,
        "key_value_heads": rows // width,
        "head_width": width,
    }, ""


def _rows(matrix: Matrix, shape: tuple[int, ...]) -> int:
    return int(matrix.take(torch.empty(shape, device="meta")).shape[0])


def _heads(attention: str, modules: dict[str, nn.Module], config: Config) -> int | None:
    sources: list[nn.Module | Config | None] = []
    name = attention
    while True:
        sources += [modules.get(name), getattr(modules.get(name), "config", None)]
        if not name:
            break
        name = _holder(name)
    for source in sources:
        for key in _HEAD_COUNTS:
            count = getattr(source, key, None)
            if isinstance(count, int) and not isinstance(count, bool):
                return count
    return whole(config, *_HEAD_COUNTS)


def _norms(block: str, modules: dict[str, nn.Module], config: Config, remarks: list[str]) -> _Norms:
    names = [
        name
        for name, module in modules.items()
        if name.startswith(block + ".")
        and _IS_NORM.search(type(module).__name__)
        and not _INSIDE_ATTENTION.search(name)
        and not re.search(r"(cross|encoder)_?attn|EncDecAttention\.", name + ".")
    ]
    family, record = str(config.get("model_type", "")), sizes_for(config, block).family
    module = modules[block]

    def ending(pattern: str, *, last: bool = False) -> str | None:
        ordered = reversed(names) if last else names
        return next((name for name in ordered if re.search(rf"\.(?:{pattern})$", name)), None)

    if not names:
        return {"parallel": record.parallel}
    behind = ending(_AFTER_ATTENTION)
    if behind is not None:
        return {"mlp_norm": behind}
    if isinstance(module, nn.TransformerEncoderLayer):
        before = bool(module.norm_first)
        return {
            "attention_norm": f"{block}.norm1" if before else None,
            "mlp_norm": f"{block}.norm2" if before else f"{block}.norm1",
        }
    before_attention = ending(_BEFORE_ATTENTION)
    before_mlp = next((name for pattern in _BEFORE_MLP if (name := ending(pattern, last=True))), None)
    flag = getattr(module, "do_layer_norm_before", getattr(module, "normalize_before", None))
    after = flag is False or (flag is None and (record.norms == "after" or _is_joma_decoder(module)))
    if after:
        cross = f"{block}.encoder_attn_layer_norm"  # the last norm before the MLP, where there is one
        return {"mlp_norm": cross if cross in modules else before_attention}
    if ending("pre_feedforward_layernorm") is not None:  # Gemma 2 and 3
        return {
            "attention_norm": before_attention,
            "output_norm": ending("post_attention_layernorm"),
            "mlp_norm": before_mlp,
        }
    if before_attention is None and ending("post_feedforward_layernorm") is not None:  # OLMo 2
        return {"output_norm": ending("post_attention_layernorm")}
    parallel = _parallel(module, record, config)
    if before_attention is not None and before_mlp is None and len(names) == 1:
        parallel = True
        before_mlp = before_attention
    told = flag is not None or record.norms == "before"
    if before_attention is not None and re.search(rf"\.(?:{_AMBIGUOUS})$", before_attention) and not told:
        modern = bool(re.search(r"(attn_norm|attention_norm)$", before_attention)) and before_mlp is not None
        if not (modern and family):
            remarks.append(
                f"whether {before_attention} stands before or behind attention is not known for "
                f"{family or type(module).__name__}: norms left out"
            )
            return {"parallel": parallel}
    if before_mlp is None:
        remarks.append(f"the norm before the MLP of {block} was not found among {', '.join(names)}")
    known = {before_attention, before_mlp}
    further = [n for n in names if n not in known and not re.search(r"(post|mlp|ffn|feed|layer\.\d)", n)]
    if further and not parallel:
        remarks.append(f"what {', '.join(further)} normalises is not known")
    return {"attention_norm": before_attention, "mlp_norm": before_mlp, "parallel": parallel}


def _is_joma_decoder(module: nn.Module) -> bool:
    """Whether this is a block of the paper's decoder (``joma.models.decoder``), by its parts."""
    return all(hasattr(module, part) for part in ("in_projection", "lower", "attention_norm", "mlp_norm"))


def _parallel(module: nn.Module, record: Family, config: Config) -> bool:
    flag = getattr(module, "use_parallel_residual", config.get("use_parallel_residual"))
    if isinstance(flag, bool):
        return flag
    if record.joint == "falcon":
        return bool(config.get("parallel_attn", True) or config.get("new_decoder_architecture"))
    return record.parallel

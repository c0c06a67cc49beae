"""What a table of weights leaves out: rows of metric ``omitted``, and matrices that are zero."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypedDict

import pandas

from joma.checkpoints.effective import Weight
from joma.checkpoints.families.matrices import Matrix
from joma.checkpoints.families.names import Place, canonical

OMITTED = "omitted"
"""The metric of rows that stand for a tensor that was not measured: its name stands in ``matrix``."""
SHARE, CONVENTION = "of the parameters", "by convention"
"""Units of such rows: a share; or of a tensor that was measured, whose layout is a convention (value 0)."""

NAMED_FROM = 0.01
"""Tensors of one kind that hold this share of a checkpoint's parameters are named if nothing tells what they
are."""
_NUMBER = re.compile(r"\d+")
_BESIDE = re.compile(
    r"(\w+_)?masks?|tril|triu|causal|alibi|slopes|(\w+_)?freqs?(_cis)?|(cos|sin)(_cached)?|(rotary|rope)(_\w+)?|wpe"
    r"|pos(itions?|itional)?|(\w+_)?pos(ition|itional)?_(emb|embs|embed|embedding|embeddings|encoding|ids|bias|index)"
    r"|(rel|relative)_\w*(bias|table|index)"
)
"""Modules and tensors that hold no matrix: masks, angles of rotary positions, embeddings of positions."""
_NAMED = 3
_BELONGS = {"lower": ("upper", "gate"), "query": ("key", "output")}
"""What has no use without a matrix of the role."""


def kind_of(name: str) -> str:
    """A tensor's name without its numbers: those of all layers have the same."""
    return _NUMBER.sub("*", canonical(name))


def is_beside_matrices(name: str) -> bool:
    """Whether a tensor is a mask, a bias or about positions: nothing that a rank is asked of.

    Args:
        name: of a tensor of two or more dimensions.
    """
    *_, holder, leaf = ["", *canonical(name).split(".")]
    own = holder if leaf in ("weight", "embedding") else leaf
    return leaf == "bias" or bool(_BESIDE.fullmatch(own)) or bool(_BESIDE.fullmatch(holder))


def find_unmeasured(
    names: Collection[str], sizes: Mapping[str, int], places: Mapping[str, Place], matrices: Iterable[Matrix]
) -> set[str]:
    """Which tensors of no known role must be named; masks, biases and positions never.

    Those that with all others of their kind hold one percent of the parameters; and those that stand in a
    layer without a matrix that other layers of its stack have, where no complete layer has one of their kind.
    """
    total = sum(sizes.values()) or 1
    names = [name for name in names if not is_beside_matrices(name)]
    by_kind: dict[str, int] = defaultdict(int)
    for name in names:
        by_kind[kind_of(name)] += sizes[name]
    held: dict[str, dict[int | None, set[str]]] = defaultdict(lambda: defaultdict(set))
    for matrix in matrices:
        if matrix.layer is not None:
            held[matrix.tower][matrix.layer].add(matrix.role)
    layers: dict[str, set[int | None]] = defaultdict(set)
    for name in names:
        layers[places[name].stack].add(places[name].layer)
    incomplete: set[tuple[str, int | None]] = set()
    for stack, roles in held.items():
        usual = set.union(*roles.values())
        incomplete |= {
            (stack, layer)
            for layer in layers[stack] | set(roles)
            if layer is not None and usual - roles.get(layer, set())
        }
    ordinary = {kind_of(name) for name in names if (places[name].stack, places[name].layer) not in incomplete}
    return {
        name
        for name in names
        if by_kind[kind_of(name)] >= NAMED_FROM * total
        or ((places[name].stack, places[name].layer) in incomplete and kind_of(name) not in ordinary)
    }


def left_out(table: pandas.DataFrame) -> str:
    """What a table of ``joma.probe_weights`` leaves out or took for granted, in a sentence; or nothing."""
    rows = table[table["metric"] == OMITTED]
    if rows.empty:
        return ""
    measured = rows["unit"] == CONVENTION
    kinds = (("left out", rows[~measured]), ("read by convention", rows[measured]))
    return " ".join(f"{what}: {_name_reasons(own)}." for what, own in kinds if len(own))


def _name_reasons(rows: pandas.DataFrame) -> str:
    by_reason = rows.groupby("reason", sort=False)["matrix"].agg(list)
    return "; ".join(f"{_name_kinds(names)} ({reason})" for reason, names in by_reason.items())


def _name_kinds(names: Iterable[str]) -> str:
    """The names; of many of one kind the first and how many there are."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in names:
        kinds[kind_of(name)].append(name)
    return ", ".join(
        f"{own[0]} and {len(own) - 1} more of its kind" if len(own) > _NAMED else ", ".join(own)
        for own in kinds.values()
    )


def is_whole(table: pandas.DataFrame) -> bool:
    """Whether all that was asked for was measured: no zero matrix, none that could not be read."""
    omitted = table["metric"] == OMITTED
    return not bool((omitted & (table["tensor"] != "")).any() or table["value"].isna().any())


def absent_matrices(matrices: Iterable[Matrix], told: Collection[tuple[str, int | None]]) -> list[Matrix]:
    """Matrices that must be there and are not, as where an export was cut: an MLP's lower one, and queries.

    Args:
        matrices: all that were found.
        told: stacks and layers in which a tensor has no role or no clear layout; nothing is absent there.

    Returns:
        The matrix of the same role in another layer, with the layer, the block and the tensor's name of that
        which lacks it: most layers of the stack have it, and this one has what belongs to it.
    """
    groups: dict[tuple[str, str, str], dict[int, dict[str, Matrix]]] = defaultdict(lambda: defaultdict(dict))
    for one in matrices:
        if one.layer is not None:
            groups[one.tower, one.module, one.expert][one.layer].setdefault(one.role, one)
    found = []
    for (tower, _, _), layers in groups.items():
        for role, beside in _BELONGS.items():
            have = [own[role] for own in layers.values() if role in own]
            for layer, own in layers.items():
                near = next((own[other] for other in beside if other in own), None)
                if role in own or near is None or 2 * len(have) <= len(layers) or (tower, layer) in told:
                    continue
                name = have[0].tensor.replace(have[0].block, near.block, 1)
                found.append(replace(have[0], layer=layer, block=near.block, tensor=name))
    return found


class Row(TypedDict):
    """A row of the table of ``probe_weights``."""

    layer: int | None
    stack: str
    expert: str
    matrix: str
    metric: str
    value: float
    unit: str
    error_bound: float | None
    rows: int
    columns: int
    dtype: str
    device: str
    tensor: str
    reason: str


def omitted_row(
    name: str,
    reason: str,
    device: str,
    *,
    share: float = math.nan,
    unit: str = SHARE,
    place: Matrix | Place | None = None,
    weight: Weight | None = None,
    asked: bool = True,
) -> Row:
    """The row of a tensor that was not measured, or whose layout is a convention.

    Args:
        name: of the tensor, or of what lies beside the weights.
        reason: half a sentence.
        device: where the others are measured.
        share: of the parameters; not a number where a matrix was asked for and has no numbers.
        unit: ``SHARE``, or ``CONVENTION`` with a share of 0.
        place: where it stands, if it stands anywhere.
        weight: what is stored under the name, if anything is.
        asked: whether a matrix that was asked for lies in it.
    """
    shape = () if weight is None else weight.shape
    rows, columns = shape[-2:] if len(shape) > 1 else (math.prod(shape), 1) if weight else (0, 0)
    return {
        "layer": None if place is None else place.layer,
        "stack": "" if place is None else place.stack,
        "expert": "" if place is None else place.expert,
        "matrix": name,
        "metric": OMITTED,
        "value": share,
        "unit": unit,
        "error_bound": None,
        "rows": rows,
        "columns": columns,
        "dtype": "" if weight is None else weight.dtype,
        "device": device,
        "tensor": name if asked else "",
        "reason": reason.rstrip("."),
    }

"""What the weights of a checkpoint say by themselves: their ranks, without building the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas
import torch
from torch import Tensor, nn

from joma.checkpoints.adapters import Adapter, open_weights
from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.families.matrices import Matrix, sort_out
from joma.checkpoints.families.names import locate
from joma.checkpoints.families.roles import ATTENTION_ROLES, MLP_ROLES, role_at
from joma.checkpoints.formats.shard import Rooms
from joma.checkpoints.in_memory import weights_of
from joma.checkpoints.omissions import (
    CONVENTION,
    Row,
    absent_matrices,
    find_unmeasured,
    left_out,
    omitted_row,
)
from joma.core.errors import InputError, nearest
from joma.core.progress import Progress
from joma.core.threads import by_work
from joma.measures.ranks.stable_rank import effective_rank, stable_rank_estimate

STATISTICS = ("stable_rank", "spectral_norm", "effective_rank")
ALL_ATTENTION = (*ATTENTION_ROLES, *(f"cross_{role}" for role in ATTENTION_ROLES))
ROLES = (*MLP_ROLES, "upper", *ALL_ATTENTION, "embedding", "unembedding")


@dataclass(frozen=True)
class _Plan:
    """What is to be measured, and what is left out."""

    matrices: list[Matrix]
    omitted: list[Row]


def probe_weights(
    path: str | Path | nn.Module,
    *,
    roles: Sequence[str] = MLP_ROLES,
    attention: bool = False,
    statistics: Sequence[str] = ("stable_rank", "spectral_norm"),
    layers: Iterable[int] | None = None,
    rtol: float | None = None,
    certify: bool = False,
    adapter: Adapter = "applied",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> pandas.DataFrame:
    """Ranks and norms of a checkpoint's matrices: every lower MLP, and others on request.

    Tensors are read one at a time, shard by shard, copied, measured and released: memory stays at a few times
    the largest tensor. No model is built and transformers is not imported. A weight is measured as its model
    uses it: scales of quantised values multiplied in, masks and normalisations applied, low-rank adapters
    added.

    Args:
        path: a folder or file (see ``joma.checkpoints.checkpoint.open_checkpoint``), a folder of an
            adapter, or a model in memory.
        roles: which matrices: the lower MLP and its gate by default; further ``ROLES``.
        attention: queries, keys, values and outputs of self and cross attention as well.
        statistics: of ``STATISTICS``. The effective rank needs whole spectra: minutes for a model of
            billions of parameters, where the others take seconds.
        layers: numbers of the layers to take; all by default.
        rtol: see ``joma.measures.ranks.stable_rank.stable_rank``.
        certify: see ``joma.measures.ranks.stable_rank.stable_rank``.
        adapter: of an adapter's folder: ``applied`` to its base model, or ``alone``, what it adds.
        device: where to compute.

    Returns:
        One row per matrix and statistic, in the order of the model: ``layer, stack, expert, matrix`` (the
        role)``, metric, value, unit, error_bound, rows, columns, dtype`` (as stored)``, device, tensor,
        reason``. ``error_bound`` is proven with ``certify``, otherwise estimated; none for the effective
        rank. Then rows of metric ``omitted``, a warning for them too: what was asked for and could not be
        read or holds NaN or infinities; of the tensors of which no rule says what they are those that stand
        where other layers have a measured matrix, and those that with all of their kind hold one percent of
        the parameters; and copies of the weights beside them. There ``matrix`` is the tensor's name,
        ``value`` its share of the parameters (0, in the unit ``by convention``, where it was measured and a
        convention told its layout), and ``reason`` says why; ``tensor`` is the name again where
        its role was asked for. A zero matrix has no stable rank: NaN, and the ``reason``.

    Raises:
        InputError: a checkpoint that cannot be read, no matrix that can be measured there, an unknown role,
            statistic or layer, NaN or infinities in every matrix (and where in the first).

    Examples:
        >>> model = Decoder(50, layers=2, width=16, hidden=32, heads=2)
        >>> table = joma.probe_weights(model)
        >>> table[table["metric"] == "stable_rank"][["layer", "matrix"]].values.tolist()
        [[0, 'lower'], [1, 'lower']]
    """
    table = weight_ranks(
        path,
        roles=roles,
        attention=attention,
        statistics=statistics,
        layers=layers,
        rtol=rtol,
        certify=certify,
        adapter=adapter,
        device=device,
        progress=progress,
    )
    if said := left_out(table):
        warnings.warn(said, stacklevel=2)
    return table


def weight_ranks(
    path: str | Path | nn.Module,
    *,
    roles: Sequence[str] = MLP_ROLES,
    attention: bool = False,
    statistics: Sequence[str] = ("stable_rank", "spectral_norm"),
    layers: Iterable[int] | None = None,
    rtol: float | None = None,
    certify: bool = False,
    adapter: Adapter = "applied",
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> pandas.DataFrame:
    """``probe_weights`` without its warning: what is left out stands in the table alone."""
    if isinstance(roles, str):
        raise InputError(f"probe_weights: roles = {roles!r} is one name; give a list of names.")
    wanted = (*roles, *(ALL_ATTENTION if attention else ()))
    _check_names("role", wanted, ROLES)
    _check_names("statistic", statistics, STATISTICS)
    rows = rank_rows(
        _open(path, adapter),
        wanted,
        statistics=statistics,
        layers=layers,
        rtol=rtol,
        certify=certify,
        device=device,
        progress=progress,
    )
    table = pandas.DataFrame(rows)
    table["layer"] = table["layer"].astype("Int64")
    return table


def rank_rows(
    checkpoint: Checkpoint,
    roles: Iterable[str],
    *,
    statistics: Sequence[str] = ("stable_rank", "spectral_norm"),
    layers: Iterable[int] | None = None,
    rtol: float | None = None,
    certify: bool = False,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    rooms: Rooms | None = None,
) -> list[Row]:
    """The rows of ``weight_ranks`` for a checkpoint that is open."""
    plan = _plan(checkpoint, set(roles), None if layers is None else set(layers), str(device))
    by_tensor: dict[str, list[int]] = {}
    for number, matrix in enumerate(plan.matrices):
        by_tensor.setdefault(matrix.tensor, []).append(number)
    # As the shards hold them, so that each file is read once and in order.
    order = sorted(by_tensor, key=lambda name: _place(checkpoint, name))
    rows: dict[int, list[Row]] = {}
    failed: dict[int, InputError] = {}
    rooms = Rooms() if rooms is None else rooms
    for name in (progress or Progress()).track(order, "weights", total=len(order)):
        with by_work(math.prod(checkpoint.weights[name].shape)):
            tensor = checkpoint.weight(name, rooms["now"])
            for number in by_tensor[name]:
                matrix = plan.matrices[number]
                weight = matrix.take(tensor)
                if weight.dtype in (torch.bfloat16, torch.float16):
                    weight = rooms["float now"].as_floats(weight)
                try:
                    rows[number] = _measure(checkpoint, matrix, weight, statistics, rtol, certify, device)
                except InputError as error:  # NaN or infinities: they cost this matrix alone
                    failed[number] = error
                    reason = str(error).removeprefix(f"{checkpoint.path}: ")
                    weighed = checkpoint.weights[name]
                    rows[number] = [omitted_row(name, reason, str(device), place=matrix, weight=weighed)]
            del tensor
    if failed and len(failed) == len(plan.matrices):
        raise next(iter(failed.values()))
    measured = [row for n in range(len(plan.matrices)) if n not in failed for row in rows[n]]
    return measured + [rows[number][0] for number in sorted(failed)] + plan.omitted


def _open(path: str | Path | nn.Module, adapter: Adapter) -> Checkpoint:
    if isinstance(path, nn.Module):
        return weights_of(path)
    return open_weights(Path(path), adapter)


def _check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    if isinstance(names, str) or not names:
        raise InputError(f"probe_weights: give a list of names as {kind}s, not {names!r}.")
    for name in names:
        if name not in known:
            raise InputError(f"probe_weights knows no {kind} {name!r}; {nearest(name, known)}")


def _place(checkpoint: Checkpoint, name: str) -> tuple[str, str]:
    return str(checkpoint.entries[checkpoint.weights[name].parts[0]].file), name


def _plan(checkpoint: Checkpoint, roles: set[str], layers: set[int] | None, device: str) -> _Plan:
    weights = checkpoint.weights
    whole = {name: weight.shape for name, weight in weights.items() if not weight.problem}
    sorted_out = sort_out(whole, checkpoint.config)
    places = {name: sorted_out.places.get(name) or locate(name) for name in weights}
    matrices = [m for m in _with_tied(sorted_out.matrices, checkpoint, roles) if m.role in roles]
    reasons = dict(sorted_out.unknown)
    asked: dict[str, str] = {}
    for name, (role, reason) in sorted_out.unclear.items():
        (asked if _is_asked(role, roles) else reasons)[name] = reason
    for name, weight in weights.items():
        if weight.problem:
            told = role_at(locate(name))
            (asked if told is not None and _is_asked(told, roles) else reasons)[name] = weight.problem
    if not matrices:
        _refuse_nothing(checkpoint, roles, asked)
    if layers is not None:
        held = {m.layer for m in matrices if m.layer is not None}
        missing = sorted(layers - held)
        if missing:
            raise InputError(
                f"{checkpoint.path} has no layer {missing[0]} with such a matrix; its layers are "
                f"{min(held, default=0)} to {max(held, default=0)}."
            )
        matrices = [m for m in matrices if m.layer in layers]
    sizes = {name: math.prod(weight.shape) for name, weight in weights.items()}
    total = sum(sizes.values()) or 1
    named = find_unmeasured(reasons, sizes, places, matrices)
    omitted = [
        omitted_row(
            name,
            reason,
            device,
            share=sizes[name] / total,
            place=places[name],
            weight=weights[name],
            asked=name in asked,
        )
        for name, reason in {**asked, **reasons}.items()
        if (name in asked or name in named) and (layers is None or places[name].layer in layers)
    ]
    conventions = {m.tensor: m for m in matrices if m.piece.convention}
    omitted += [
        omitted_row(
            name,
            one.piece.convention,
            device,
            share=0.0,
            unit=CONVENTION,
            place=one,
            weight=weights[name],
            asked=False,
        )
        for name, one in conventions.items()
    ]
    partly = {(places[name].stack, places[name].layer) for name in {**asked, **reasons}}
    omitted += [
        omitted_row(
            one.tensor, f"it is not there, though most layers have their {one.role} matrix", device, place=one
        )
        for one in absent_matrices(sorted_out.matrices, partly)
        if one.role in roles and (layers is None or one.layer in layers)
    ]
    omitted += [
        omitted_row(where, reason, device, share=count / total, asked=False)
        for where, (reason, count) in checkpoint.asides.items()
        if layers is None
    ]
    return _Plan(matrices, omitted)


def _is_asked(role: str, roles: set[str]) -> bool:
    """Whether a tensor of this role may hold a matrix that was asked for."""
    prefix, plain = ("cross_", role[6:]) if role.startswith("cross_") else ("", role)
    holds = {
        "gate_and_lower": ("gate", "lower"),
        "fused": ("query", "key", "value", "query_key_value"),
        "fused_key_value": ("key", "value", "key_value"),
    }
    return any(f"{prefix}{one}" in roles for one in holds.get(plain, (plain,)))


def _with_tied(matrices: list[Matrix], checkpoint: Checkpoint, roles: set[str]) -> list[Matrix]:
    """Where the unembedding is the embedding's matrix, and was asked for by name, that one."""
    config = checkpoint.config or {}
    inner = config.get("text_config")
    tied = config.get(
        "tie_word_embeddings", inner.get("tie_word_embeddings") if isinstance(inner, Mapping) else None
    )
    if "unembedding" not in roles or tied is not True or any(m.role == "unembedding" for m in matrices):
        return matrices
    return [*matrices, *(replace(m, role="unembedding") for m in matrices if m.role == "embedding")]


def _refuse_nothing(checkpoint: Checkpoint, roles: set[str], asked: Mapping[str, str]) -> None:
    if asked:
        name, reason = next(iter(asked.items()))
        raise InputError(
            f"{checkpoint.path}: none of the {len(asked)} matrices asked for can be read: {name!r}: {reason}."
        )
    some = ", ".join(repr(name) for name in list(checkpoint.weights)[:3])
    hint = (
        " (a model whose embeddings are tied has one matrix, the embedding)"
        if roles == {"unembedding"}
        else ""
    )
    raise InputError(
        f"{checkpoint.path}: none of its {len(checkpoint.weights)} tensors ({some}, ...) has the name of a "
        f"{' or '.join(sorted(roles))} matrix{hint}; ask for other roles, or report this model's family."
    )


def _measure(
    checkpoint: Checkpoint,
    matrix: Matrix,
    tensor: Tensor,
    statistics: Sequence[str],
    rtol: float | None,
    certify: bool,
    device: str | torch.device,
) -> list[Row]:
    expert = f", expert {matrix.expert}" if matrix.expert else ""
    where = f"{checkpoint.path}: {matrix.tensor} ({matrix.role}{expert})"
    weight = tensor.to(device)
    values: dict[str, tuple[float, float | None]] = {}
    zero = not bool(weight[:1].any() or weight.any())  # the first row tells of most
    if zero:
        values = {
            "stable_rank": (math.nan, None),
            "spectral_norm": (0.0, 0.0),
            "effective_rank": (math.nan, None),
        }
    elif {"stable_rank", "spectral_norm"} & set(statistics):
        found = stable_rank_estimate(weight, rtol=rtol, certify=certify, where=where)
        norm = found.spectral_norm
        values["stable_rank"] = found.value, found.error_bound
        values["spectral_norm"] = norm.value, norm.upper_bound - norm.value
    if "effective_rank" in statistics and not zero:
        values["effective_rank"] = float(effective_rank(weight, where=where)), None
    return [
        {
            "layer": matrix.layer,
            "stack": matrix.stack,
            "expert": matrix.expert,
            "matrix": matrix.role,
            "metric": statistic,
            "value": values[statistic][0],
            "unit": "",
            "error_bound": values[statistic][1],
            "rows": weight.shape[0],
            "columns": weight.shape[1],
            "dtype": checkpoint.weights[matrix.tensor].dtype,
            "device": str(device),
            "tensor": checkpoint.weights[matrix.tensor].name,
            "reason": "the matrix is zero" if zero else "",
        }
        for statistic in statistics
    ]

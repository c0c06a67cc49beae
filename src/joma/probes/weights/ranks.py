"""What the weights of a checkpoint say by themselves: their ranks, without building the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from joma.errors import InputError, nearest
from joma.measures.ranks.stable_rank import effective_rank, stable_rank_estimate
from joma.probes.families.matrices import ATTENTION_ROLES, MLP_ROLES, Matrix, find_matrices
from joma.probes.weights.checkpoints import Checkpoint, open_checkpoint
from joma.probes.weights.in_memory import weights_of
from joma.probes.weights.shard import Room
from joma.progress import Progress

if TYPE_CHECKING:
    import pandas

STATISTICS = ("stable_rank", "spectral_norm", "effective_rank")
ROLES = (
    *MLP_ROLES,
    "upper",
    *ATTENTION_ROLES,
    *(f"cross_{role}" for role in ATTENTION_ROLES),
    "embedding",
    "unembedding",
)
_PACKED = ("qweight", "_blocks", "weight_packed", "quant_state")


def probe_weights(
    path: str | Path | nn.Module,
    *,
    roles: Sequence[str] = MLP_ROLES,
    attention: bool = False,
    statistics: Sequence[str] = ("stable_rank", "spectral_norm"),
    layers: Iterable[int] | None = None,
    rtol: float | None = None,
    certify: bool = False,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> pandas.DataFrame:
    """Ranks and norms of a checkpoint's matrices: every lower MLP, and others on request.

    Tensors are read one at a time, shard by shard, copied, measured and released: memory stays at a
    few times the largest tensor. No model is built and transformers is not imported.

    Args:
        path: a folder or file (see :func:`joma.probes.weights.checkpoints.open_checkpoint`), or a model in
            memory.
        roles: which matrices: the lower MLP and its gate by default; further :data:`ROLES`.
        attention: queries, keys, values and outputs of self and cross attention as well.
        statistics: of :data:`STATISTICS`. The effective rank needs whole spectra: minutes for a model
            of billions of parameters, where the others take seconds.
        layers: numbers of the layers to take; all by default.
        rtol: see :func:`joma.measures.ranks.stable_rank.stable_rank`.
        certify: see :func:`joma.measures.ranks.stable_rank.stable_rank`.
        device: where to compute.

    Returns:
        One row per matrix and statistic, in the order of the model: ``layer, stack, expert, matrix``
        (the role)``, metric, value, unit, error_bound, rows, columns, dtype`` (as stored)``, device,
        tensor``. ``error_bound`` is proven with ``certify``, otherwise estimated; none for the
        effective rank.

    Raises:
        InputError: a checkpoint that cannot be read, no matrix known by its name there, an unknown
            role, statistic or layer, a weight that holds NaN or infinities or is zero (and where).
    """
    if isinstance(roles, str):
        raise InputError(f"probe_weights: roles = {roles!r} is one name; give a list of names.")
    wanted_roles = (*roles, *(role for role in ROLES if attention and role in _attention_names()))
    _check_names("role", wanted_roles, ROLES)
    _check_names("statistic", statistics, STATISTICS)
    checkpoint = weights_of(path) if isinstance(path, nn.Module) else open_checkpoint(path)
    matrices = _wanted(checkpoint, set(wanted_roles), None if layers is None else set(layers))
    by_tensor: dict[str, list[int]] = {}
    for number, matrix in enumerate(matrices):
        by_tensor.setdefault(matrix.tensor, []).append(number)
    # As the shards hold them, so that each file is read once and in order.
    order = sorted(by_tensor, key=lambda name: (str(checkpoint.entries[name].file), name))
    rows: dict[int, list[dict[str, Any]]] = {}
    room = Room()
    for name in (progress or Progress()).track(order, "weights", total=len(order)):
        tensor = _read(checkpoint, name, room)
        for number in by_tensor[name]:
            rows[number] = _measure(checkpoint, matrices[number], tensor, statistics, rtol, certify, device)
        del tensor
    import pandas as pd

    table = pd.DataFrame([row for number in range(len(matrices)) for row in rows[number]])
    table["layer"] = table["layer"].astype("Int64")
    return table


def _attention_names() -> tuple[str, ...]:
    return (*ATTENTION_ROLES, *(f"cross_{role}" for role in ATTENTION_ROLES))


def _check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    if isinstance(names, str) or not names:
        raise InputError(f"probe_weights: give a list of names as {kind}s, not {names!r}.")
    for name in names:
        if name not in known:
            raise InputError(f"probe_weights knows no {kind} {name!r}; {nearest(name, known)}")


def _wanted(checkpoint: Checkpoint, roles: set[str], layers: set[int] | None) -> list[Matrix]:
    shapes = {name: entry.shape for name, entry in checkpoint.entries.items()}
    found = [m for m in find_matrices(shapes, checkpoint.config) if m.role in roles]
    packed = sorted(name for name in shapes if name.endswith(_PACKED))
    if packed:
        raise InputError(
            f"{checkpoint.path} holds packed quantised weights ({packed[0]!r}) that are not the matrices "
            "themselves; save the model dequantised, or give its GGUF file."
        )
    if not found:
        some = ", ".join(repr(name) for name in list(shapes)[:3])
        raise InputError(
            f"{checkpoint.path}: none of its {len(shapes)} tensors ({some}, ...) has the name of a "
            f"{' or '.join(sorted(roles))} matrix; ask for other roles, or report this model's family."
        )
    if layers is None:
        return found
    held = {m.layer for m in found if m.layer is not None}
    missing = sorted(layers - held)
    if missing:
        raise InputError(
            f"{checkpoint.path} has no layer {missing[0]} with such a matrix; its layers are "
            f"{min(held, default=0)} to {max(held, default=0)}."
        )
    return [m for m in found if m.layer in layers]


def _read(checkpoint: Checkpoint, name: str, room: Room) -> Tensor:
    """A tensor, with the block-wise scales of float8 checkpoints (DeepSeek-V3) multiplied in."""
    tensor = checkpoint.read(name, room)
    scale_name = f"{name}_scale_inv"
    if scale_name not in checkpoint.entries or tensor.ndim != 2:
        return tensor
    scale = checkpoint.read(scale_name).float()
    tensor = tensor.float()
    for axis in range(2):
        blocks = scale.shape[axis]
        # The blocks are squares of one size, the last ones cut off.
        size = _block_size(tensor.shape[axis], blocks)
        scale = scale.repeat_interleave(size, dim=axis).narrow(axis, 0, tensor.shape[axis])
    return tensor.mul_(scale)


def _block_size(length: int, blocks: int) -> int:
    size = 128
    return size if -(-length // size) == blocks else -(-length // blocks)


def _measure(
    checkpoint: Checkpoint,
    matrix: Matrix,
    tensor: Tensor,
    statistics: Sequence[str],
    rtol: float | None,
    certify: bool,
    device: str | torch.device,
) -> list[dict[str, Any]]:
    expert = f", expert {matrix.expert}" if matrix.expert else ""
    where = f"{checkpoint.path}: {matrix.tensor} ({matrix.role}{expert})"
    weight = matrix.take(tensor).to(device)
    values: dict[str, tuple[float, float | None]] = {}
    if {"stable_rank", "spectral_norm"} & set(statistics):
        found = stable_rank_estimate(weight, rtol=rtol, certify=certify, where=where)
        norm = found.spectral_norm
        values["stable_rank"] = found.value, found.error_bound
        values["spectral_norm"] = norm.value, norm.upper_bound - norm.value
    if "effective_rank" in statistics:
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
            "dtype": checkpoint.entries[matrix.tensor].dtype,
            "device": str(device),
            "tensor": matrix.tensor,
        }
        for statistic in statistics
    ]

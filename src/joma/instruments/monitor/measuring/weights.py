"""What a monitor reads off the weights, at a slower cadence: stable ranks of lower MLPs and Q-K products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from joma.checkpoints.checkpoint import Checkpoint
from joma.checkpoints.families.matrices import Matrix, find_matrices
from joma.checkpoints.families.sizes import sizes_for
from joma.checkpoints.in_memory import weights_of
from joma.core.errors import InputError
from joma.instruments.monitor.measuring.blocks import Block, block_of, learning_blocks
from joma.instruments.monitor.measuring.rows import COLUMNS
from joma.measures.ranks.stable_rank import stable_rank_estimate

LOWER, QUERY_KEY = "lower", "query_key"
_RTOL = 1e-3


def stable_ranks(model: nn.Module, step: int, blocks: Sequence[Block] = ()) -> pd.DataFrame:
    """A row per layer for its lower MLP (|W|_F^2 / sigma_1^2), and one for W_Q^T W_K, summed over heads.

    Layers are told apart by the blocks that their weights lie in; blocks of lists in which nothing is trained
    are left out, where something is trained in others.

    ``module`` says which of the two. Keys that several queries share are repeated. Experts are left out; a
    matrix whose values are not finite, or all zero, has NaN.

    Raises:
        InputError: no such matrix is known by its name.
    """
    checkpoint = weights_of(model)
    rows = [
        {"step": step, "stack": stack, "layer": layer, "module": module, "value": _rank(weight, where)}
        for stack, layer, module, where, weight in _wanted_weights(checkpoint, blocks)
    ]
    if not rows:
        raise InputError(
            "the weights have no stable ranks: no rule matches a lower MLP, or queries and keys, among "
            "their names."
        )
    table = pd.DataFrame(rows).assign(call=0, head=pd.NA, metric="stable_rank", unit="", count=1)
    return table[list(COLUMNS)]


def why_sharded(model: nn.Module) -> str:
    """Why the weights are not read here, where a process holds a share of them; empty where it holds all."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            return f"the weights are sharded ({name} is a DTensor, as FSDP2 makes them)"
        if hasattr(parameter, "ds_id"):
            return f"the weights are sharded ({name} is partitioned by ZeRO)"
    return ""


def _wanted_weights(
    checkpoint: Checkpoint, blocks: Sequence[Block]
) -> Iterator[tuple[str, int, str, str, Tensor]]:
    """Stack, layer, which matrix, its place in words, and the matrix."""
    shapes = {name: weight.shape for name, weight in checkpoint.weights.items() if not weight.problem}
    followed = learning_blocks(blocks)
    by_layer: dict[tuple[str, int], dict[str, Matrix]] = {}
    for matrix in find_matrices(shapes, checkpoint.config):
        if matrix.layer is not None and not matrix.expert:
            block = block_of(blocks, matrix.tensor.replace("_orig_mod.", ""))
            if block is None or block in followed:
                place = (matrix.stack, matrix.layer) if block is None else (block.stack, block.number)
                by_layer.setdefault(place, {})[matrix.role] = matrix
    for (stack, layer), roles in by_layer.items():
        where = f"{stack} layer {layer}".lstrip()
        if "lower" in roles:
            yield stack, layer, LOWER, f"{LOWER} of {where}", _take_weight(checkpoint, roles["lower"])
        if "query" in roles and "key" in roles:
            query, key = (_take_weight(checkpoint, roles[role]) for role in ("query", "key"))
            heads = sizes_for(checkpoint.config or {}, roles["query"].tensor).heads
            if len(key) < len(query) and heads and len(query) % heads == 0:
                per_head = len(query) // heads
                shared = key.view(-1, per_head, key.shape[1])
                key = shared.repeat_interleave(len(query) // len(key), dim=0).flatten(0, 1)
            if len(key) == len(query):
                yield stack, layer, QUERY_KEY, f"{QUERY_KEY} of {where}", query.T @ key


def _take_weight(checkpoint: Checkpoint, matrix: Matrix) -> Tensor:
    return matrix.take(checkpoint.weight(matrix.tensor)).float()


def _rank(weight: Tensor, where: str) -> float:
    if not bool(torch.isfinite(weight).all()) or not bool(weight.any()):
        return float("nan")
    return stable_rank_estimate(weight, rtol=_RTOL, where=where).value

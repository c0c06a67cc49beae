"""From what a look saw to rows of a table and numbers for a log."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from joma.instruments.monitor.measuring.look import RESIDUAL, Observation
from joma.measures.attention.statistics import metric_of

RAW = ("loss", "gradient_norm")
"""What is known of every step, looked at or not."""
LOG_NORM = "log_spectral_norm"
"""The natural logarithm of sigma_1 of W_Q^T W_K of a head, without the scale of the logits."""
BETWEEN = (*RAW, LOG_NORM)
"""What is known between looks, too."""
COLUMNS = ("step", "stack", "layer", "module", "call", "head", "metric", "value", "unit", "count")
_DTYPES = dict(
    zip(
        COLUMNS,
        ("int64", "object", "Int64", "object", "int64", "Int64", "object", "float64", "object", "int64"),
        strict=True,
    )
)


def summary(rows: pd.DataFrame, raw: pd.DataFrame) -> dict[str, float]:
    """Per stack, layer and statistic minimum, median, maximum and which head is extreme; loss and
    gradient norm.
    """
    numbers: dict[str, float] = {}
    for (metric, stack, layer), own in rows.groupby(["metric", "stack", "layer"], sort=True):
        values = own.dropna(subset="value")
        if values.empty:
            continue
        place = f"{stack}/layer{layer}" if stack else f"layer{layer}"
        name = f"joma/{metric}/{place}"
        if metric == "stable_rank":
            numbers |= {f"joma/stable_rank/{row.module}/{place}": row.value for row in values.itertuples()}
            continue
        if values["head"].isna().all():
            numbers[name] = float(values["value"].max())
            continue
        least, most = values["value"].idxmin(), values["value"].idxmax()
        numbers[f"{name}/min"], numbers[f"{name}/min_head"] = (
            float(values["value"][least]),
            float(values["head"][least]),
        )
        numbers[f"{name}/median"] = float(values["value"].median())
        numbers[f"{name}/max"], numbers[f"{name}/max_head"] = (
            float(values["value"][most]),
            float(values["head"][most]),
        )
    for metric in RAW:
        own = raw[raw["metric"] == metric]
        if len(own):
            numbers[f"joma/{metric}"] = float(own["value"].iloc[-1])
    return numbers


def tidy(step: int, seen: list[Observation]) -> pd.DataFrame:
    """The rows of one look, from one transfer of all its numbers."""
    numbers = iter(on_host([part.values for part in seen]))
    counts = iter(on_host([part.counts for part in seen]))
    rows: list[list[str | float | None]] = []
    for part in seen:
        heads = 0 if part.metric in RESIDUAL else part.values.numel()
        metric = metric_of(part.metric)
        for head in range(max(heads, 1)):
            which = head if heads else None
            value, count = next(numbers), int(next(counts))
            if count or heads:  # of an empty batch, or one of padding alone, a stream says nothing
                place: list[str | float | None] = [
                    step,
                    part.stack,
                    part.layer,
                    part.module,
                    part.call,
                    which,
                ]
                rows.append([*place, metric, value, part.unit, count])
    return frame(rows)


def frame(rows: list[list[str | float | None]]) -> pd.DataFrame:
    """Rows in the order of ``COLUMNS`` as a table of the right types."""
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    return pd.DataFrame(
        {
            name: pd.array(list(values), dtype="Int64")
            if _DTYPES[name] == "Int64"
            else np.array(values, dtype=_DTYPES[name])
            for name, values in zip(COLUMNS, columns, strict=True)
        }
    )


def set_types(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose numbers have the right types; itself where they have."""
    numeric = {name: dtype for name, dtype in _DTYPES.items() if dtype != "object"}
    wrong = {name: dtype for name, dtype in numeric.items() if table[name].dtype != dtype}
    return table.astype(wrong) if wrong else table


def on_host(tensors: list[Tensor]) -> list[float]:
    """All entries of tensors on any devices: one transfer for each device and dtype."""
    if not tensors:
        return []
    wide = [torch.float32 if tensor.device.type == "mps" else torch.float64 for tensor in tensors]
    flat = [tensor.detach().reshape(-1).to(kind) for tensor, kind in zip(tensors, wide, strict=True)]
    if len({tensor.device for tensor in flat}) == 1:
        numbers: list[float] = torch.cat(flat).tolist()
        return numbers
    return [float(value) for tensor in flat for value in tensor.tolist()]


def gradient_norm(model: nn.Module) -> Tensor | None:
    """The 2-norm of the gradients that are there, on their device; None where there is none.

    None also where a process holds a share of them alone (DTensors of FSDP2): the norm would take a
    collective call at every step, and a loop that clips has it.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        return None
    return torch.nn.utils.get_total_norm(gradients) if gradients else None

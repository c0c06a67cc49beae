"""From a captured call to numbers: statistics per row, and their reduction over the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.errors import InputError
from joma.instruments.watch.call import AttentionCall
from joma.measures.attention.entropy import AttentionEntropy, attention_entropy
from joma.measures.attention.received.attention import RECEIVED, received_attention
from joma.measures.attention.statistics import STATISTICS, check_names, metric_of, needs_positions

if TYPE_CHECKING:
    import pandas

Reduction = Literal["mean", "position", "none"]


def check_statistics(names: Sequence[str]) -> tuple[str, ...]:
    """The names, if all are known.

    Raises:
        InputError: for an unknown name, or none at all.
    """
    asked = (names,) if isinstance(names, str) else tuple(names)
    if not asked:
        raise InputError("statistics is empty in watch; name one, such as 'entropy'.")
    check_names(tuple(name for name in asked if name not in RECEIVED), sinks=True)
    return asked


@dataclass(frozen=True)
class Measurement:
    """One statistic of one call, reduced. Tensors stay on their device until ``columns``."""

    name: str
    unit: str
    values: Tensor
    """(heads,), (heads, rows) or (batch, heads, rows), as reduced."""
    errors: Tensor
    counts: Tensor
    rows: Tensor
    """(rows,) which query rows were measured."""
    standard_errors: Tensor | None = None
    """Where rows were sampled, what that adds, like ``values``."""
    first_head: int = 0
    """The number of the first head."""

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Columns of the table: head, position and sample as they apply, value, error_bound, count."""
        values, errors, counts = (t.detach().cpu().numpy() for t in (self.values, self.errors, self.counts))
        names = ("head", "position") if values.ndim < 3 else ("sample", "head", "position")
        kept = np.ones(values.shape, dtype=bool) if values.ndim == 1 else counts > 0
        places = dict(zip(names, np.nonzero(kept), strict=False))
        if "position" in places:
            places["position"] = self.rows.cpu().numpy()[places["position"]]
        places["head"] = places["head"] + self.first_head
        columns = {**places, "value": values[kept], "error_bound": errors[kept], "count": counts[kept]}
        if self.standard_errors is not None:
            columns["standard_error"] = self.standard_errors.detach().cpu().numpy()[kept]
        return columns


def measure(
    call: AttentionCall,
    statistics: Sequence[str],
    *,
    tolerance: float | None,
    valid: Tensor | None,
    rows: float | None = None,
    seed: int = 0,
) -> AttentionEntropy:
    """The statistics of every row, or of a share of them (see ``joma.attention_entropy``).

    ``valid`` (batch, queries) is False for padding, which may hold NaN. Scores that a model made itself
    are measured as they are: as the bias of queries and keys that are zero.

    Raises:
        InputError: if a query, key or score of a row that is no padding is NaN or infinite, or a
            statistic needs to know which key is whose in scores that do not say it.
    """
    if not call.positions and (name := needs_positions(statistics)):
        raise InputError(
            f"{name!r} needs the keys in the order of the tokens, and the scores of {call.operation} are "
            "of shape (batch, queries, heads, keys), a window's; leave that statistic out."
        )
    query, key, bias = _inputs_of(call, valid)
    return attention_entropy(
        query,
        key,
        scale=call.scale,
        causal=call.causal,
        mask=call.keep,
        bias=bias,
        softcap=call.softcap,
        sinks=call.sinks,
        tolerance=tolerance,
        statistics=statistics,
        rows=rows,
        seed=seed,
    )


def measure_all(
    call: AttentionCall,
    statistics: Sequence[str],
    tolerance: float | None,
    valid: Tensor | None,
    how: Reduction,
    rows: float | None,
    seed: int,
) -> list[Measurement]:
    """Statistics of rows and of keys, reduced; arguments of ``measure`` and ``reduce_rows``."""
    own = [name for name in statistics if name not in RECEIVED]
    measured: list[Measurement] = []
    if own:
        result = measure(call, own, tolerance=tolerance, valid=valid, rows=rows, seed=seed)
        measured = reduce_rows(result, own, valid, how, call.first_head)
    received = [name for name in statistics if name in RECEIVED]
    return measured + measure_received(call, received, valid=valid, how=how, rows=rows, seed=seed)


def measure_received(
    call: AttentionCall,
    names: Sequence[str],
    *,
    valid: Tensor | None,
    how: Reduction,
    rows: float | None = None,
    seed: int = 0,
) -> list[Measurement]:
    """The statistics of ``RECEIVED`` by these names; a position is a key's.

    ``valid`` (batch, queries) is False for padding, which asks nothing. Keys that no query sees are left out.

    Raises:
        InputError: a statistic of the values, of a call that does not show them.
    """
    if not names:
        return []
    needing = [name for name in names if name in ("removal_effect", "value_mass")]
    if needing and call.value is None:
        raise InputError(
            f"{needing[0]!r} needs the values, and {call.operation} was seen by its scores only; load the "
            "model with attn_implementation='sdpa', or leave that statistic out."
        )
    query, key, bias = _inputs_of(call, valid)
    found = received_attention(
        query,
        key,
        call.value if needing else None,
        scale=call.scale,
        causal=call.causal,
        mask=call.keep,
        bias=bias,
        softcap=call.softcap,
        sinks=call.sinks,
        rows=rows,
        counted=valid,
        seed=seed,
    )
    seen = found.visible > 0
    place = torch.arange(seen.shape[-1], device=seen.device)
    out = []
    for name in names:
        short = name.removeprefix("received_")
        values = found[short].double().masked_fill(~seen, torch.nan)
        errors = found.errors[short].double().masked_fill(~seen, torch.nan)
        counts = seen.to(torch.int64)
        if how != "none":
            over = (0, 2) if how == "mean" else (0,)
            counts = counts.sum(over)
            values, errors = values.nansum(over) / counts, errors.nansum(over) / counts
        unit = RECEIVED[name][0] or "1"
        out.append(Measurement(name, unit, values, errors, counts, place, None, call.first_head))
    return out


def _inputs_of(call: AttentionCall, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries, keys and bias of a call without what padding holds; scores become the bias of zeros."""
    if call.logits is not None:
        return _as_bias(call.logits, valid)
    assert call.query is not None
    assert call.key is not None
    return *_without_padding(call.query, call.key, valid), call.bias


def _as_bias(logits: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    dtype = str(logits.dtype).removeprefix("torch.")
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    # A row that sees no key has a largest score of -inf, and says so itself.
    largest = logits.amax()
    if valid is not None and not bool(torch.isfinite(largest)):
        logits = logits.masked_fill(~valid[:, None, :, None], 0.0)
        largest = logits.amax()
    if not bool(largest < torch.inf):
        raise InputError(
            f"the model's own scores overflow in {dtype}: their largest is {largest.item()}; run it in a "
            "wider dtype, or scale its queries before the product."
        )
    batch, heads, queries, keys = logits.shape
    return logits.new_zeros(batch, heads, queries, 1), logits.new_zeros(batch, heads, keys, 1), logits


def _without_padding(query: Tensor, key: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Padding may hold NaN (half precision makes them); zeros instead, before they spread by a mean."""
    if valid is None or (bool(torch.isfinite(query.sum())) and bool(torch.isfinite(key.sum()))):
        return query, key

    def clean(tensor: Tensor) -> Tensor:
        if valid.shape[1] != tensor.shape[2]:
            return tensor
        return tensor.masked_fill(~valid[:, None, :, None], 0.0)

    return clean(query), clean(key)


def reduce_rows(
    result: AttentionEntropy,
    statistics: Sequence[str],
    valid: Tensor | None,
    how: Reduction,
    first_head: int = 0,
) -> list[Measurement]:
    """Reduce over the valid rows (``valid``: (batch, queries)) that have a value, in float64."""
    sampled = bool((result.strata != 1).any())
    if valid is not None:
        valid = valid[:, result.rows.to(valid.device)].to(result.error.device)
    out = []
    for name in statistics:
        values = result[name].double()
        keep = torch.isfinite(values)
        if valid is not None:
            keep = keep & valid[:, None]
        values = values.masked_fill(~keep, torch.nan)
        errors = result.errors[name].double().masked_fill(~keep, 0.0)
        counts, standard_errors = keep.to(torch.int64), None
        if how == "none":
            errors = errors.masked_fill(~keep, torch.nan)
        else:
            over = (0, 2) if how == "mean" else (0,)
            weight = keep.double() * (result.strata.double() if how == "mean" else 1.0)
            total = weight.sum(over)
            if sampled and how == "mean":
                known = replace(result, values={name: values})
                share = weight.sum(2)
                within = known.mean(name)[1].masked_fill(share == 0, 0.0)
                standard_errors = (within * share).square().sum(0).sqrt() / total
            values = (values.nan_to_num(0.0) * weight).sum(over) / total
            errors = (errors * weight).sum(over) / total
            counts = counts.sum(over)
        unit = STATISTICS.get(name, ("nats", ""))[0] or "1"
        out.append(Measurement(name, unit, values, errors, counts, result.rows, standard_errors, first_head))
    return out


@dataclass(frozen=True)
class Record:
    """One attention of one pass: step, module, its number within the pass, the dtype it ran in."""

    step: int
    module: str
    call: int
    dtype: str
    measured: list[Measurement]


def make_table(measurements: Iterable[tuple[int, Record, Measurement]]) -> pandas.DataFrame:
    """One row per number of these measurements, given with the layer and the record of each."""
    import pandas

    parts: list[dict[str, NDArray[np.generic]]] = []
    for layer, record, measured in measurements:
        columns = measured.columns()
        size = len(columns["value"])
        identity: dict[str, str | int] = {
            "step": record.step,
            "layer": layer,
            "module": record.module,
            "call": record.call,
            "metric": metric_of(measured.name),
            "unit": measured.unit,
            "dtype": record.dtype,
        }
        part = {key: np.repeat(np.asarray([v]), size) for key, v in identity.items()}
        parts.append({**part, **columns})
    # One frame of joined columns: a frame for each part takes many times as long.
    joined = {
        name: np.concatenate([part.get(name, np.full(len(part["value"]), np.nan)) for part in parts])
        for name in dict.fromkeys(name for part in parts for name in part)
    }
    table = pandas.DataFrame(joined)
    first = ["step", "layer", "module", "call", "head"]
    places = [name for name in ("sample", "position") if name in table]
    last = ["error_bound", *(c for c in ("standard_error",) if c in table), "dtype", "count"]
    return table[[*first, *places, "metric", "value", "unit", *last]]

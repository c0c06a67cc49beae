"""From correlations query by query to a table: means over queries and positions, errors between texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.core.errors import InputError
from joma.measures.joint_dynamics import Variant

_Sums = NDArray[np.float64]
_Columns = dict[str, NDArray[np.generic]]
_FIRST_BIN = 16

Identity = Mapping[str, str | int | None]
"""Columns that say which layer a row is of."""


def bins_of(length: int) -> tuple[int, ...]:
    """Edges of bins of query positions: 0, 16, 32, 64, ..., up to at least ``length``."""
    edges = [0, _FIRST_BIN]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return tuple(edges)


@dataclass
class IndexSums:
    """Per text: sums over the queries of each bin, and over all of them, and how many there were."""

    variants: tuple[Variant, ...] = ()
    sums: list[_Sums] = field(default_factory=list)
    """(texts, variants, heads, bins + 1), the last of all queries."""
    counts: list[_Sums] = field(default_factory=list)

    def add(self, found: Mapping[Variant, Tensor], mask: Tensor, first: Tensor, edges: Sequence[int]) -> None:
        """The texts of a batch. ``found``: (batch, heads, queries), NaN where a query has no value; ``mask``:
        (batch, queries), False for padding; ``first``: (batch,), each text's first token, where positions
        start."""
        position = torch.arange(mask.shape[1], device=mask.device) - first[:, None]
        inner = torch.tensor(edges[1:-1], device=mask.device)
        which = torch.bucketize(position.clamp_min(0), inner, right=True)
        members = torch.nn.functional.one_hot(which, len(edges) - 1).double() * mask[..., None]
        members = torch.cat([members, mask[..., None].double()], -1)
        values = torch.stack(list(found.values()), 1)
        known = values.isfinite()
        for sums, of_queries in (
            (self.sums, values.masked_fill_(~known, 0.0)),
            (self.counts, known.double()),
        ):
            sums.append(
                torch.unflatten(of_queries.flatten(1, 2) @ members, 1, known.shape[1:3]).cpu().numpy()
            )
        self.variants = tuple(found)

    def join(self) -> tuple[_Sums, _Sums]:
        """Sums and counts, (texts, variants, heads, bins + 1); shorter batches' missing bins are empty."""
        longest = max(array.shape[-1] for array in self.counts)
        sums, counts = (
            np.concatenate(
                [np.insert(a, [a.shape[-1] - 1] * (longest - a.shape[-1]), 0.0, axis=-1) for a in arrays]
            )
            for arrays in (self.sums, self.counts)
        )
        return sums, counts


def index_table(
    layers: Iterable[tuple[Mapping[str, str | int | None], Mapping[int, IndexSums]]],
    heads: Sequence[int] | None,
) -> pd.DataFrame:
    """The table of ``joma.instruments.probe.sections.joint_dynamics.joint_dynamics``.

    Args:
        layers: of each, the columns that identify it, and the sums of each call (none: not measured).
        heads: numbers of the heads to report; None: all.

    Raises:
        InputError: a head that does not exist.
    """
    parts: list[_Columns] = []
    for identity, calls in layers:
        if not calls:
            parts.append(_identify({"metric": np.array(["index"]), "count": np.zeros(1)}, identity))
        for call, sums in calls.items():
            rows = _rows(sums, heads, str(identity["module"]))
            parts.append(_identify(rows, {**identity, "call": call}))
    columns = ["stack", "layer", "module", "call", "head", "metric", "scale", "given", "sink", "position"]
    columns += ["position_end", "value", "standard_error", "count", "mlp_layer", "dtype", "reason"]
    # One frame of whole columns: a small frame for each layer costs more than what it holds.
    table = pd.DataFrame(
        {
            name: np.concatenate([part.get(name, np.full(len(part["metric"]), np.nan)) for part in parts])
            for name in columns
        }
    )
    whole = ("layer", "call", "head", "position", "position_end", "count", "mlp_layer")
    return table.astype(dict.fromkeys(whole, "Int64"))


def _identify(rows: _Columns, identity: Identity) -> _Columns:
    number = len(rows["metric"])
    return {**rows, **{name: np.full(number, said, object) for name, said in identity.items()}}


def _rows(sums: IndexSums, heads: Sequence[int] | None, module: str) -> _Columns:
    total, count = sums.join()
    there = total.shape[2]
    chosen = list(range(there)) if heads is None else sorted(set(heads))
    for asked in chosen:
        if not 0 <= asked < there:
            raise InputError(f"there is no head {asked} in {module}; its heads are 0 to {there - 1}.")
    # The mean over heads, the last: over all their queries.
    total, count = (
        np.concatenate([part[:, :, chosen], part[:, :, chosen].sum(2, keepdims=True)], 2)
        for part in (total, count)
    )
    draws: dict[Variant, list[int]] = {}
    for at, variant in enumerate(sums.variants):
        draws.setdefault(variant._replace(draw=0), []).append(at)
    order = {variant: number for number, variant in enumerate(draws)}
    parts = []
    for null in (False, True):
        alike = [variant for variant in draws if (variant.metric == "null") == null]
        if alike:
            members = [draws[variant] for variant in alike]
            parts.append(_of_variants(alike, order, [*chosen, np.nan], total[:, members], count[:, members]))
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    place = rows.pop("order").argsort(kind="stable")
    return {name: column[place] for name, column in rows.items()}


def _of_variants(
    variants: Sequence[Variant],
    order: Mapping[Variant, int],
    heads: Sequence[float],
    total: _Sums,
    count: _Sums,
) -> _Columns:
    """Columns. ``total`` and ``count``: (texts, variants, draws, heads, bins + 1)."""
    bins = total.shape[-1] - 1
    edges = np.array([0, *(_FIRST_BIN * 2**n for n in range(bins))], dtype=np.float64)
    queries = count[:, :, 0].sum(0)
    some = queries > 0
    by_draw = total.sum(0) / np.maximum(count.sum(0), 1)
    metrics = [np.array([variant.metric for variant in variants], object)]
    values = [np.where(some, by_draw.mean(1), np.nan)]
    errors = [_standard_errors(total.mean(2), count.mean(2))]
    if variants[0].metric == "null" and by_draw.shape[1] > 1:
        metrics.append(np.full(len(variants), "null_spread", object))
        values.append(np.where(some, by_draw.std(1, ddof=1), np.nan))
        errors.append(np.full_like(errors[0], np.nan))
    some[..., -1] = True
    number = len(values)
    variant, head, place = (np.repeat(at, number) for at in np.nonzero(some))
    which = np.tile(np.arange(number), len(variant) // number)
    labels = {
        name: np.array([getattr(one, name) for one in variants], object)[variant]
        for name in ("scale", "given", "sink")
    }
    return {
        "order": np.array([order[one] for one in variants])[variant],
        "head": np.asarray(heads, dtype=np.float64)[head],
        "metric": np.stack(metrics)[which, variant],
        **labels,
        "position": np.append(edges[:-1], np.nan)[place],
        "position_end": np.append(edges[1:], np.nan)[place],
        "count": queries[variant, head, place].astype(np.int64),
        "value": np.stack(values)[which, variant, head, place],
        "standard_error": np.stack(errors)[which, variant, head, place],
    }


def _standard_errors(sums: _Sums, counts: _Sums) -> _Sums:
    """Of the ratios of the sums to the counts, (texts, ...), texts taken as independent draws."""
    texts, whole = (counts > 0).sum(0), np.maximum(counts.sum(0), 1)
    residuals = sums - sums.sum(0) / whole * counts
    variance = np.square(residuals).sum(0) * texts / np.maximum(texts - 1, 1)
    errors: _Sums = np.where(texts > 1, np.sqrt(variance) / whole, np.nan)
    return errors

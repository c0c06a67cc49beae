"""From correlations query by query to a table: means over queries and positions, errors between texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from joma.errors import InputError
from joma.measures.joint_dynamics import Variant

if TYPE_CHECKING:
    import pandas

_Sums = NDArray[np.float64]
_FIRST_BIN = 16


def bins_of(length: int) -> tuple[int, ...]:
    """Edges of bins of query positions: 0, 16, 32, 64, ..., up to at least ``length``."""
    edges = [0, _FIRST_BIN]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return tuple(edges)


@dataclass
class IndexSums:
    """Per text: sums over the queries of each bin, and over all of them, and how many there were."""

    sums: dict[Variant, list[_Sums]] = field(default_factory=dict)
    """(texts, heads, bins + 1), the last of all queries."""
    counts: dict[Variant, list[_Sums]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, found: Mapping[Variant, Tensor], mask: Tensor, first: Tensor, edges: Sequence[int]
    ) -> IndexSums:
        """Of one batch. ``found``: (batch, heads, queries), NaN where a query has no value; ``mask``: (batch,
        queries), False for padding; ``first``: (batch,), each text's first token, where positions start."""
        position = torch.arange(mask.shape[1], device=mask.device) - first[:, None]
        inner = torch.tensor(edges[1:-1], device=mask.device)
        which = torch.bucketize(position.clamp_min(0), inner, right=True)
        members = torch.nn.functional.one_hot(which, len(edges) - 1).double() * mask[..., None]
        members = torch.cat([members, mask[..., None].double()], -1)
        sums = cls()
        for variant, values in found.items():
            known = values.isfinite()
            total = torch.einsum("bhq,bqn->bhn", values.masked_fill(~known, 0.0), members)
            count = torch.einsum("bhq,bqn->bhn", known.double(), members)
            sums.sums[variant] = [total.cpu().numpy()]
            sums.counts[variant] = [count.cpu().numpy()]
        return sums

    def add(self, other: IndexSums) -> None:
        """The texts of another batch as well."""
        for mine, theirs in ((self.sums, other.sums), (self.counts, other.counts)):
            for variant, arrays in theirs.items():
                mine.setdefault(variant, []).extend(arrays)

    def joined(self, variant: Variant) -> tuple[_Sums, _Sums]:
        """Sums and counts, (texts, heads, bins + 1); shorter batches' missing bins are empty."""
        longest = max(array.shape[-1] for array in self.counts[variant])
        joined = []
        for arrays in (self.sums[variant], self.counts[variant]):
            padded = [np.insert(a, [a.shape[-1] - 1] * (longest - a.shape[-1]), 0.0, axis=-1) for a in arrays]
            joined.append(np.concatenate(padded))
        return joined[0], joined[1]


def index_table(
    layers: Iterable[tuple[dict[str, Any], Mapping[int, IndexSums]]], heads: Sequence[int] | None
) -> pandas.DataFrame:
    """The table of :func:`joma.probes.sections.joint_dynamics.joint_dynamics`.

    Args:
        layers: of each, the columns that identify it, and the sums of each call (none: not measured).
        heads: numbers of the heads to report; None: all.

    Raises:
        InputError: a head that does not exist.
    """
    import pandas as pd

    parts = []
    for identity, calls in layers:
        if not calls:
            parts.append(pd.DataFrame([{**identity, "metric": "index", "value": np.nan, "count": 0}]))
        for call, sums in calls.items():
            parts.append(pd.DataFrame(_rows(sums, heads, str(identity["module"]))))
            parts[-1] = parts[-1].assign(call=call, **identity)
    columns = ["stack", "layer", "module", "call", "head", "metric", "scale", "given", "sink", "position"]
    columns += ["position_end", "value", "standard_error", "count", "mlp_layer", "dtype", "reason"]
    table = pd.concat([part.reindex(columns=columns) for part in parts], ignore_index=True)
    whole = ("layer", "call", "head", "position", "position_end", "count", "mlp_layer")
    return table.astype(dict.fromkeys(whole, "Int64"))


def _rows(sums: IndexSums, heads: Sequence[int] | None, module: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    variants = [variant for variant in sums.sums if variant.draw == 0]
    for variant in variants:
        draws = [v for v in sums.sums if v._replace(draw=0) == variant]
        totals, counts = zip(*(sums.joined(draw) for draw in draws), strict=True)
        total, count = np.stack(totals), np.stack(counts)  # (draws, texts, heads, bins + 1)
        there = total.shape[2]
        chosen = list(range(there)) if heads is None else sorted(set(heads))
        for asked in chosen:
            if not 0 <= asked < there:
                raise InputError(f"there is no head {asked} in {module}; its heads are 0 to {there - 1}.")
        of_heads: list[tuple[int | None, _Sums, _Sums]]
        of_heads = [(head, total[:, :, head], count[:, :, head]) for head in chosen]
        # The mean over heads: over all their queries.
        of_heads.append((None, total[:, :, chosen].sum(2), count[:, :, chosen].sum(2)))
        for head, part, number in of_heads:
            rows += _of_head(variant, head, part, number)
    return rows


def _of_head(variant: Variant, head: int | None, total: _Sums, count: _Sums) -> list[dict[str, Any]]:
    """``total`` and ``count``: (draws, texts, bins + 1)."""
    edges = [0, *(_FIRST_BIN * 2**n for n in range(total.shape[-1] - 1))]
    rows = []
    for place in range(total.shape[-1]):
        sums, numbers = total[..., place], count[..., place]
        queries = int(numbers[0].sum())
        last = place == total.shape[-1] - 1
        if not queries and not last:
            continue
        by_draw = sums.sum(1) / np.maximum(numbers.sum(1), 1) if queries else np.full(len(sums), np.nan)
        own = {
            "head": head,
            "metric": variant.metric,
            "scale": variant.scale,
            "given": variant.given,
            "sink": variant.sink,
            "position": None if last else edges[place],
            "position_end": None if last else edges[place + 1],
            "count": queries,
        }
        error = _standard_error(sums.mean(0), numbers.mean(0))
        rows.append({**own, "value": float(by_draw.mean()), "standard_error": error})
        if variant.metric == "null" and len(by_draw) > 1:
            spread = float(by_draw.std(ddof=1))
            rows.append({**own, "metric": "null_spread", "value": spread, "standard_error": np.nan})
    return rows


def _standard_error(sums: _Sums, counts: _Sums) -> float:
    """Of the ratio of the sums (texts,) to the counts, texts taken as independent draws."""
    texts = np.flatnonzero(counts)
    if len(texts) < 2:
        return float("nan")
    residuals = sums[texts] - sums.sum() / counts.sum() * counts[texts]
    variance = np.square(residuals).sum() * len(texts) / (len(texts) - 1)
    return float(np.sqrt(variance) / counts.sum())

"""Attention statistics of a model over a text: per head, and by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas
from numpy.typing import NDArray
from torch import nn

from joma.core.errors import InputError
from joma.instruments.reading.passes import Output
from joma.instruments.reading.shared import Part, Section, read
from joma.instruments.reading.texts import TokenBatch
from joma.instruments.watch.measuring import Measurement
from joma.instruments.watch.watch import watch
from joma.measures.attention.statistics import metric_of

STATISTICS = ("entropy", "normalised_entropy", "first_key_mass", "previous_key_mass", "mean_distance")
"""What is measured by default; all of them come from one pass without the attention matrix."""

_EXACT_POSITIONS = 32
_BIN_GROWTH = 1.08


@dataclass
class _Sums:
    """Of one statistic of one attention: sums over rows, by head and position; and per batch, by head."""

    unit: str
    value: NDArray[np.float64]
    error: NDArray[np.float64]
    count: NDArray[np.float64]
    batches: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """Of each batch the sums and the rows, (2, heads)."""

    def add(self, measured: Measurement, batch: int) -> None:
        values = measured.values.detach().cpu().double().numpy()
        counts = measured.counts.detach().cpu().double().numpy()
        rows = measured.rows.cpu().numpy()
        last = int(rows.max()) + 1
        if last > self.value.shape[1]:
            grow = ((0, 0), (0, last - self.value.shape[1]))
            self.value, self.error, self.count = (
                np.pad(array, grow) for array in (self.value, self.error, self.count)
            )
        sums = np.where(counts > 0, values * counts, 0.0)
        self.value[:, rows] += sums
        errors = measured.errors.detach().cpu().double().numpy()
        self.error[:, rows] += np.where(counts > 0, errors * counts, 0.0)
        self.count[:, rows] += counts
        self.batches[batch] = self.batches.get(batch, 0.0) + np.stack([sums.sum(1), counts.sum(1)])


def attention_statistics(
    model: nn.Module,
    batches: Iterable[TokenBatch],
    *,
    statistics: Sequence[str] = STATISTICS,
    layers: Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
    rows: float | None = None,
    tolerance: float | None = None,
) -> tuple[pandas.DataFrame, pandas.DataFrame, pandas.DataFrame]:
    """Run the model over the batches and measure every attention on the way.

    Memory does not grow with the number of batches.

    Args:
        model: any module that ``joma.watch`` can watch.
        batches: ``(tokens, mask)``, each (batch, length).
        statistics: names out of ``joma.measures.attention.statistics.STATISTICS``.
        layers: see ``joma.watch``.
        rows: see ``joma.watch``.
        tolerance: see ``joma.watch``.
        heads: numbers of the heads to report; all by default.

    Returns:
        Three tables. Per head: ``layer, module, call, head, metric, value, unit, error_bound,
        standard_error, count, dtype``, means over all rows that are no padding, the standard error that of
        the mean over batches (NaN for fewer than two). By position: the same with ``position`` and
        ``position_end`` (rows of a bin of neighbouring positions, the end excluded), without it.
        Coverage: see ``joma.instruments.watch.watch.Watch.coverage``.

    Raises:
        InputError: an attention that was asked for could not be measured (and why), or none was seen; a
            head that does not exist.
    """
    section = AttentionSection(
        model, statistics=statistics, layers=layers, heads=heads, rows=rows, tolerance=tolerance
    )
    read(model, list(batches), [section])
    per_head, positions, coverage = section.tables().values()
    return per_head, positions, coverage


class AttentionSection(Section):
    """Every attention's statistics, summed up pass by pass; arguments of ``attention_statistics``."""

    def __init__(
        self,
        model: nn.Module,
        *,
        statistics: Sequence[str] = STATISTICS,
        layers: Sequence[int | str] | None = None,
        heads: Sequence[int] | None = None,
        rows: float | None = None,
        tolerance: float | None = None,
    ) -> None:
        self._watch = partial(
            watch,
            model,
            layers=layers,
            statistics=statistics,
            reduce="position",
            rows=rows,
            tolerance=tolerance,
        )
        self._seen = self._watch()
        self._heads = heads
        self._sums: dict[tuple[int, str, int, str, str], _Sums] = {}
        self._coverages: list[pandas.DataFrame] = []

    @contextmanager
    def around_pass(self, part: Part) -> Iterator[None]:
        """Watch the pass."""
        self._seen = self._watch()
        with self._seen:
            yield

    def after_pass(self, part: Part, output: Output) -> None:
        """Add what was seen."""
        for layer, record, measured in self._seen.measurements():
            key = (layer, record.module, record.call, measured.name, record.dtype)
            empty = np.zeros((measured.values.shape[0], 0))
            self._sums.setdefault(key, _Sums(measured.unit, empty, empty, empty)).add(measured, part.number)
        self._coverages.append(self._seen.coverage())

    def make_tables(self) -> dict[str, pandas.DataFrame]:
        """``attention``, ``positions`` and ``coverage``: see ``attention_statistics``."""
        if not self._coverages:
            raise InputError("there is no batch of text to run the model on; give a text with words in it.")
        # A module may be there twice: with an attention, and with a softmax that is none.
        alike = ["module", "layer", "route", "operation", "status"]
        coverage = pandas.concat(self._coverages).groupby(alike, sort=False, dropna=False, as_index=False)
        covered = coverage.agg({"calls": "sum", "reason": "max"})[list(self._coverages[0])]
        per_head, by_position = [], []
        for (layer, module, call, statistic, dtype), entry in self._sums.items():
            chosen = _chosen_heads(self._heads, entry.value.shape[0], module)
            identity: dict[str, int | str] = {
                "layer": layer,
                "module": module,
                "call": call,
                "metric": metric_of(statistic),
            }
            last: dict[str, int | str] = {"unit": entry.unit, "dtype": dtype}
            per_head.append(_label(_per_head(entry, chosen), identity, last))
            by_position.append(_label(_by_position(entry, chosen), identity, last))
        order = ["layer", "module", "call", "head"]
        places = ["position", "position_end"]
        values = ["metric", "value", "unit", "error_bound"]
        return {
            "attention": _join_columns(per_head, [*order, *values, "standard_error", "count", "dtype"]),
            "positions": _join_columns(by_position, [*order, *places, *values, "count", "dtype"]),
            "coverage": covered,
        }


_Columns = Mapping[str, NDArray[np.generic]]


def _label(columns: _Columns, *labels: Mapping[str, int | str]) -> _Columns:
    size = len(columns["value"])
    return {
        **columns,
        **{name: np.repeat(np.asarray([v]), size) for one in labels for name, v in one.items()},
    }


def _join_columns(parts: Sequence[_Columns], order: Sequence[str]) -> pandas.DataFrame:
    """One frame of joined columns: a frame for each part takes many times as long."""
    return pandas.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in order})


def _chosen_heads(heads: Sequence[int] | None, there: int, module: str) -> NDArray[np.int64]:
    if heads is None:
        return np.arange(there)
    for head in heads:
        if not 0 <= head < there:
            raise InputError(f"there is no head {head} in {module}; its heads are 0 to {there - 1}.")
    return np.asarray(sorted(set(heads)), dtype=np.int64)


def _mean(total: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _per_head(entry: _Sums, heads: NDArray[np.int64]) -> _Columns:
    count = entry.count.sum(1)
    mean = _mean(entry.value.sum(1), count)
    return {
        "head": heads,
        "value": mean[heads],
        "error_bound": _mean(entry.error.sum(1), count)[heads],
        "standard_error": _standard_error(entry, mean, count)[heads],
        "count": count[heads].astype(np.int64),
    }


def _standard_error(
    entry: _Sums, mean: NDArray[np.float64], count: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of the ratio (sum over rows) / (rows), batches taken as independent draws."""
    if len(entry.batches) < 2:
        return np.full_like(mean, np.nan)
    number = len(entry.batches)
    residuals = np.stack([total - mean * rows for total, rows in entry.batches.values()])
    spread = np.sqrt(np.square(residuals).sum(0) * number / (number - 1))
    return _mean(spread, count)


def _by_position(entry: _Sums, heads: NDArray[np.int64]) -> _Columns:
    edges = position_bins(entry.value.shape[1])
    totals, errors, counts = (
        np.add.reduceat(array[heads], edges[:-1], axis=1) for array in (entry.value, entry.error, entry.count)
    )
    number, some = len(edges) - 1, counts.ravel() > 0
    columns = {
        "head": np.repeat(heads, number),
        "position": np.tile(edges[:-1], len(heads)),
        "position_end": np.tile(edges[1:], len(heads)),
        "value": _mean(totals, counts).ravel(),
        "error_bound": _mean(errors, counts).ravel(),
        "count": counts.ravel().astype(np.int64),
    }
    return {name: column[some] for name, column in columns.items()}


def position_bins(length: int) -> NDArray[np.int64]:
    """Edges of bins of positions: single ones first, then wider and wider; the last is ``length``."""
    edges = list(range(min(_EXACT_POSITIONS, length)))
    edge = float(_EXACT_POSITIONS)
    while edge < length:
        if edges[-1] < round(edge) < length:
            edges.append(round(edge))
        edge = max(edge + 1, edge * _BIN_GROWTH)
    return np.asarray([*edges, length], dtype=np.int64)

"""``joma.watch``: the attention statistics of any PyTorch model, measured while it runs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from joma.core.errors import InputError, words_of
from joma.core.tables import frame_html
from joma.instruments.watch import registry
from joma.instruments.watch.call import AttentionCall
from joma.instruments.watch.capture.candidates import Report
from joma.instruments.watch.capture.lineage import Lineage
from joma.instruments.watch.capture.modes import MODES
from joma.instruments.watch.capture.observer import AttentionMode, Observer, leave_unobserved
from joma.instruments.watch.coverage import Coverage
from joma.instruments.watch.measuring import (
    Measurement,
    Record,
    Reduction,
    check_statistics,
    make_table,
    measure_all,
)
from joma.instruments.watch.owners import OUTSIDE, Owners, Place, module_of
from joma.instruments.watch.selection import Selection

if TYPE_CHECKING:
    import pandas


def watch(
    model: nn.Module,
    *,
    layers: Iterable[int | str] | None = None,
    statistics: Sequence[str] = ("entropy",),
    reduce: Reduction = "mean",
    rows: float | None = None,
    tolerance: float | None = None,
) -> Watch:
    """Measure every attention of a model while it runs: ``with joma.watch(model) as seen: model(...)``.

    The model's outputs and gradients stay the same bit for bit; statistics are computed beside it, in
    float32 or better whatever its dtype, without its attention matrices where its attention has none.
    Dropout on the probabilities is not part of the distribution. A compiled model runs uncompiled
    while it is watched (``torch.compiler.set_stance("force_eager")``), so there the outputs are those
    of the uncompiled model. The repeated forward pass of gradient checkpointing is not counted, nor is one
    that is traced or exported, whose tensors have no values. A pass that raises keeps what had run of it.

    Padding is left out: rows of tokens that no query sees, the token's own neither, however the model was
    told of them (a mask of any name, lengths, a dictionary); the same tokens where they ask others (cross
    attention); and rows that see no key at all. A mask that hides no key is taken for padding if it is an
    ``attention_mask`` (``decoder_attention_mask``, ``src_key_padding_mask``, ...).

    Args:
        model: any module; transformers' models, ``nn.MultiheadAttention``, plain
            ``F.scaled_dot_product_attention`` or code that takes a softmax of scores; or what holds one
            (``nnsight.NNsight``).
        layers: which attentions: layer numbers (the first number in a module's name: 7 for
            ``model.layers.7.self_attn``) and patterns of module names (``encoder.*``). None: all.
        statistics: names of ``joma.measures.attention.statistics.STATISTICS``. With learned sinks
            (GPT-OSS) the sink is one more outcome; ``entropy_among_keys`` leaves it out. Those of keys
            (``received_mass``, ``received_maximum``, ``removal_effect``, ...: see
            ``joma.received_attention``) are means over the keys, or by the key's position.
        reduce: ``"mean"`` over the valid rows of a head, ``"position"`` (over the batch, row by row),
            or ``"none"``: every valid row.
        rows: share of the query rows to measure, drawn anew in each pass, one from each stratum of
            neighbours; the table then has a ``standard_error``.
        tolerance: in nats, by default 5e-5; rows whose error estimate is beyond it are computed again
            in float64.

    Returns:
        A ``Watch``. One watch can be entered again and again (its passes go on counting), also
        inside itself; several watches can be nested.

    Raises:
        InputError: for a model that is no module, an unknown statistic or reduction.

    Examples:
        >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> with joma.watch(model) as seen:
        ...     outputs = model(*[torch.randn(3, 5, 8)] * 3)
        >>> seen.table()["metric"].unique().tolist()
        ['attention_entropy']
    """
    return Watch(model, layers=layers, statistics=statistics, reduce=reduce, rows=rows, tolerance=tolerance)


class Watch:
    """What ``watch`` returns: a context manager, and afterwards what was seen.

    ``step`` numbers the forward passes from 0. Set it before a pass to number it otherwise (a training
    step, say); it grows by one with every pass.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Iterable[int | str] | None,
        statistics: Sequence[str],
        reduce: Reduction,
        rows: float | None,
        tolerance: float | None,
    ) -> None:
        model = module_of(model)
        if reduce not in ("mean", "position", "none"):
            raise InputError(f"reduce = {reduce!r} in watch; choose 'mean', 'position' or 'none'.")
        self.statistics = check_statistics(statistics)
        self.layers = None if layers is None else Selection(layers)
        if rows is not None and not 0 < rows < 1:
            raise InputError(
                f"rows = {rows} in watch is not a share of the rows; give one in (0, 1), or None."
            )
        self.reduce = reduce
        self.rows = rows
        self.tolerance = tolerance
        self.step = 0
        self._model_name = type(model).__name__
        self._lineage = Lineage((*model.parameters(), *model.buffers()))
        self._owners = Owners(model, self, self._lineage)
        self._mode: AttentionMode | None = None
        self._records: list[Record] = []
        self._coverage = Coverage()
        self._calls: Counter[tuple[int, str]] = Counter()
        self._current = 0
        self._outside = 0
        self._suppressed = 0
        self._depth = 0
        self._stack: ExitStack | None = None
        self._has_values = True
        """Whether the tensors of the pass that runs have values."""
        self._failure = ""
        """What went wrong in the watching itself; from there on nothing is watched."""

    def __repr__(self) -> str:
        seen = len({record.module for record in self._records})
        passes = len({record.step for record in self._records})
        return f"<Watch of {self._model_name}: {seen} attentions in {passes} passes; see table()>"

    def _repr_html_(self) -> str:
        return frame_html(self.table(), repr(self)) if self._records else f"<p>{escape(repr(self))}</p>"

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth > 1:
            return self
        with ExitStack() as stack:
            stack.callback(self._owners.detach)
            self._owners.attach()
            registry.add_observer(self)
            stack.callback(registry.remove_observer, self)
            report = Report(self._measure, self._exclude, self._opaque)
            observer = Observer(report, self._owners.place, self._active, self._fail)
            self._mode = AttentionMode(observer, self._lineage)
            stack.callback(self._pass_ended)
            stack.enter_context(MODES.enter(self._mode))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._owners.elsewhere:
            raise InputError(
                "this watch was entered in another thread, whose passes it measures; leave it in that thread."
            )
        self._depth -= 1
        if self._depth == 0 and self._stack is not None:
            stack, self._stack = self._stack, None
            self._suppressed = 0
            stack.__exit__(*exception)

    # What is reported while the model runs

    def _pass_started(self, module: nn.Module) -> None:
        self._has_values = _computes()
        self._current = self.step
        self.step += self._has_values
        self._lineage.begin()

    def _pass_ended(self, whole: bool = True) -> None:
        self._lineage.inside = False
        self._has_values = True
        if self._mode is not None:
            self._mode.candidates.flush()

    def _mark(self) -> tuple[int, ...]:
        """What ``_module_raised`` may go back to."""
        return ()

    def _module_raised(self, mark: tuple[int, ...]) -> None:
        """A module raised before its end: what was seen in it was computed, and is kept."""

    def _fail(self, error: Exception) -> None:
        """The model's own pass goes on; ``table`` raises."""
        self._failure = self._failure or words_of(error)

    def _active(self) -> bool:
        return self._has_values and not self._failure and not self._suppressed and self._owners.here

    def _asked_for(self, name: str) -> bool:
        return self.layers is None or self.layers(name)

    def _opaque(self, operation: str, why: str) -> None:
        name = self._owners.place().name
        if name == OUTSIDE:
            self._outside += 1
        elif self._asked_for(name):
            self._coverage.note(name, "none", operation, "not measured", f"{operation}: {why}")
        else:
            self._coverage.note(name, "none", operation, "not asked for")

    def _exclude(self, operation: str, why: str, place: Place) -> None:
        if place.name != OUTSIDE and self._asked_for(place.name):
            self._coverage.exclude(place.name, operation, why)

    def _measure(self, call: AttentionCall, place: Place) -> Callable[[str], None] | None:
        """Measure a call and count it; returns how it is taken back, should it prove to be none."""
        name = place.name
        if name == OUTSIDE:
            self._outside += 1
            return None
        if not self._asked_for(name):
            self._coverage.note(name, call.route, call.operation, "not asked for")
            return None
        try:
            rows, remark = place.valid_rows(call)
            # One query row, as in decoding, is no sample.
            share = self.rows if call.shape[2] > 16 else None
            measured = measure_all(
                call, self.statistics, self.tolerance, rows, self.reduce, share, self._current
            )
        except Exception as error:  # the model's own pass goes on; table() raises
            self._coverage.note(name, call.route, call.operation, "not measured", words_of(error))
            return None
        number = self._calls[self._current, name]
        self._calls[self._current, name] += 1
        dtype = str(call.dtype).removeprefix("torch.")
        record = Record(self._current, name, number, dtype, measured)
        self._records.append(record)
        self._coverage.note(name, call.route, call.operation, "measured", remark)

        def take_back(why: str) -> None:
            self._records.remove(record)
            self._coverage.take_back(name)
            self._exclude(call.operation, why, place)

        return take_back

    @contextmanager
    def around(
        self, call: Callable[[], AttentionCall | None], module: nn.Module, told: tuple[Tensor, Tensor]
    ) -> Iterator[None]:
        """Around one attention function of transformers (see ``joma.instruments.watch.registry``)."""
        name = self._owners.name_of(module)
        if name is None or not self._active():
            yield
            return
        try:
            with leave_unobserved():
                made = call()
        except Exception as error:
            self._coverage.note(name, "registry", type(module).__name__, "not measured", words_of(error))
            with self._suppression():
                yield
            return
        if made is None:
            yield
            return
        with self._suppression():
            yield
        try:
            with leave_unobserved():
                place = replace(self._owners.place(), name=name, module=module)
                self._measure(self._lineage.with_inputs(made, *told), place)
        except Exception as error:
            self._fail(error)

    @contextmanager
    def _suppression(self) -> Iterator[None]:
        self._suppressed += 1
        try:
            yield
        finally:
            self._suppressed -= 1

    # What was seen

    def coverage(self) -> pandas.DataFrame:
        """Per attention module: ``layer, route, operation, calls, status, reason``.

        ``status`` is ``measured``, ``not asked for``, ``not measured`` or ``no attention`` (then ``reason``
        says why): a softmax over channels, say, or whose probabilities enter no matrix product. A
        measured one has a remark there if padding may be among its rows.
        Modules that ran and are attention by their class's name, but in which no softmax attention was
        seen, are listed as not measured with route ``none``.
        """
        silent = [(name, self._asked_for(name)) for name in self._owners.silent(set(self._coverage.entries))]
        return self._coverage.table(self._model_name, silent)

    def table(self) -> pandas.DataFrame:
        """One row per measurement.

        Columns ``step, layer, module, call, head, metric, value, unit, error_bound, dtype, count``.
        ``call`` numbers a module's attentions within a pass (ALBERT's one module has twelve); ``count``
        is the number of rows in a mean, and a head that had none has value NaN and count 0. With
        ``reduce="position"`` there is a column ``position`` (the row's number in the call), with
        ``"none"`` also ``sample``; with sampled rows, ``standard_error``. ``error_bound`` estimates the
        numerical error from above (of means: the mean of the rows' estimates).

        Raises:
            InputError: if nothing was measured, or an attention that was asked for could not be.
        """
        return make_table(self.measurements())

    def measurements(self) -> Iterator[tuple[int, Record, Measurement]]:
        """What ``table`` is made of, as tensors on their device: layer, record and one statistic.

        Raises:
            InputError: as ``table``.
        """
        if problem := self.problem():
            raise InputError(problem)
        silent = [name for name in self._owners.silent(set(self._coverage.entries)) if self._asked_for(name)]
        if silent:
            warnings.warn(
                f"no softmax attention was seen in {len(silent)} module(s) that look like one, first "
                f"{silent[0]}; see coverage().",
                stacklevel=2,
            )
        yield from self.measurements_so_far()

    def measurements_so_far(self) -> Iterator[tuple[int, Record, Measurement]]:
        """The same, whatever else could not be measured."""
        for record in self._records:
            layer = self._coverage.layer(record.module)
            named = replace(record, module=record.module or self._model_name)
            for measured in record.measured:
                yield layer, named, measured

    def problem(self) -> str:
        """Why ``table`` would raise; empty where it would not."""
        if self._failure:
            return f"the watching of {self._model_name} failed ({self._failure})."
        failed = {n: e for n, e in self._coverage.entries.items() if e.status == "not measured"}
        if failed:
            name, entry = next(iter(failed.items()))
            return (
                f"{len(failed)} attention module(s) could not be measured, first {name or self._model_name}: "
                f"{entry.reason} seen.coverage() lists them; watch(model, layers=...) leaves them out."
            )
        return "" if self._records else self._why_nothing()

    def _why_nothing(self) -> str:
        if not self.step and not self._outside:
            return f"no forward pass of {self._model_name} ran inside the watch; call the model within it."
        if self._coverage.entries and self.layers is not None:
            some = ", ".join(list(self._coverage.entries)[:4])
            return f"layers = {self.layers.text} in watch chose none of the attentions seen ({some}, ...)."
        if self._outside:
            return (
                f"{self._outside} attention call(s) ran outside every module of {self._model_name}; call the "
                "model itself (model(...)), or watch the module that ran."
            )
        if self._coverage.excluded:
            (name, _, reason), *more = self._coverage.excluded
            where = (name or self._model_name) + (f" and {len(more)} others" if more else "")
            return (
                f"no attention was seen in {self._model_name}: the softmax of {where} is none ({reason}); "
                "watch a model that has attention."
            )
        return (
            f"no attention was seen in {self._model_name}: neither a scaled-dot-product kernel nor a softmax "
            "whose probabilities enter a matrix product; watch a model that has attention."
        )


def _computes() -> bool:
    """Whether tensors have values now: not while a graph is traced or exported, or shapes alone are
    followed.
    """
    kinds = torch._C._TorchDispatchModeKey
    followed = (torch._C._get_dispatch_mode(kind) for kind in (kinds.FAKE, kinds.PROXY))
    return not (torch._C._get_tracing_state() is not None or torch.compiler.is_compiling() or any(followed))

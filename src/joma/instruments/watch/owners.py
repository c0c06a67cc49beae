"""Whose operation is it, and which of its rows are padding: the stack of modules that are running."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from joma.core.errors import InputError
from joma.instruments.reading.remarks import no_remark_on_hooks
from joma.instruments.watch.call import AttentionCall
from joma.instruments.watch.capture.lineage import Lineage
from joma.instruments.watch.hooks import leave_out_of_copies
from joma.instruments.watch.padding import (
    KEPT_ROWS,
    Argument,
    blocks_of_rows,
    length_of,
    mask_places,
    parameters_of,
    shapes_of,
    tensors_of_tokens,
    tokens_kept,
    tokens_of,
    told_apart,
)

OUTSIDE = "(outside)"
"""The owner of what is computed in no module of the watched model."""

LOOKS_LIKE_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


def module_of(model: object) -> nn.Module:
    """The model itself, or the one model that an object holds, such as the wrapper of a tracer.

    Raises:
        InputError: no torch.nn.Module, nor an object that holds exactly one.
    """
    if isinstance(model, nn.Module):
        return model
    held = [value for value in getattr(model, "__dict__", {}).values() if isinstance(value, nn.Module)]
    if len({id(value) for value in held}) != 1:
        raise InputError(
            f"watch(model) got a {type(model).__name__}; give a torch.nn.Module (wrap plain code in one)."
        )
    return held[0]


@dataclass(frozen=True)
class _Padding:
    """A padding mask that a module was given."""

    rows: Tensor
    """(batch, length) bool, True for tokens that are not padding; somewhere False."""
    sources: frozenset[int]
    """The inputs that its tokens go back to."""
    tokens: int
    """How many tokens the module was given: fewer than the mask's length where a cache holds the others."""


@dataclass(frozen=True)
class _Stream:
    """Tokens that asked themselves."""

    sources: frozenset[int]
    shape: tuple[int, int]
    """Samples and tokens."""
    rows: Tensor | None
    """True for tokens that are not padding; None: none is."""


@dataclass
class _RunningModule:
    name: str
    module: nn.Module
    handled: BaseException | None = None
    """The exception around it, of code that tries it again."""
    mark: tuple[int, ...] = ()
    """What the watch had seen before it."""
    paddings: list[_Padding] = field(default_factory=list)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    """Of what it and the modules in it were called with."""


@dataclass(frozen=True)
class Place:
    """Where an operation ran: in which module, and what is known of the modules around it."""

    name: str
    module: nn.Module | None
    running: tuple[_RunningModule, ...] = ()
    """Outermost first."""
    streams: list[_Stream] = field(default_factory=list)
    """What tokens were seen to be padding in this pass, in the order seen."""
    hints: list[Tensor] = field(default_factory=list)
    """What the model was called with and may say which tokens are padding, by no name."""

    def split(self, size: int, queries: int, keys: int) -> int:
        """How many heads are in an axis that holds batch and heads: its size over that of the batch.

        The batch is that of the innermost module that was called with these tokens. Heads are never taken out
        of the batch: scores of one head are (batch, queries, keys).
        """
        for running in reversed(self.running):
            shapes = {shape for shape in running.shapes if {queries, keys} & set(shape[:-1])}
            batches = {_batch(shape, queries, keys) for shape in shapes}
            if size in batches:
                return 1
            if fitting := [batch for batch in batches if size % batch == 0]:
                return size // max(fitting)
        return 1

    def has_tokens(self, size: int) -> bool:
        """Whether a running module was called with so many tokens."""
        return any(
            len(shape) == 3 and size in shape[:2] for running in self.running for shape in running.shapes
        )

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether a running module was called with such a tensor, whatever its last axis."""
        return any(shape == one[:-1] for running in self.running for one in running.shapes)

    def valid_rows(self, call: AttentionCall) -> tuple[Tensor | None, str]:
        """Which query rows are no padding, (batch, queries), or None for all; and what to say of that.

        Where tokens ask themselves, padding is what a mask given to a module around says if the call hides it
        (``_told``), and otherwise the tokens that no query sees. Where they ask others, it is what they
        last were when they asked themselves.

        Raises:
            InputError: the batch of the call is not that of the mask.
        """
        batch, _, queries, keys = call.shape
        if call.padding is not None:
            rows: Tensor | None = ~call.padding
            self._note(call, rows)
            return rows, ""
        rows, others = self._find_padding(call)
        if rows is not None:
            self._note(call, rows)
            return rows, ""
        if call.among_themselves:
            padding = call.tokens_that_are_padding()
            if padding is None:
                padding = told_apart(call, self.hints)
            rows = None if padding is None else ~padding
            self._note(call, rows)
        else:
            for stream in reversed(self.streams):
                if stream.sources & call.asking and stream.shape == (batch, queries):
                    return stream.rows, ""
        if rows is None and not others and call.asking == call.answering and queries != keys:
            seen = call.tokens_seen() if call.asking else None
            others = 0 if seen is None else keys
        remark = (
            f"all rows count, padding too: {queries} ask at a time, and the padding mask speaks of {others} "
            "tokens"
        )
        return rows, remark if others and rows is None else ""

    def _note(self, call: AttentionCall, rows: Tensor | None) -> None:
        batch, _, queries, _ = call.shape
        if call.among_themselves:
            self.streams.append(_Stream(call.asking, (batch, queries), rows))

    def _find_padding(self, call: AttentionCall) -> tuple[Tensor | None, int]:
        """The rows that a padding mask around leaves, or the number of tokens of one that does not fit.

        The innermost mask counts that speaks of the queries: it is that of the tokens that queries and keys
        both go back to, has their number, and the call hides its padding from the others. With a cache the
        queries are the last of the mask's tokens.
        """
        batch, _, queries, keys = call.shape
        others = 0
        for running in reversed(self.running):
            for padding in running.paddings:
                if not (padding.sources & call.asking and padding.sources & call.answering):
                    continue
                length = padding.rows.shape[1]
                cached = queries < length <= keys and padding.tokens == queries
                if not cached and not (queries == length and (length <= keys or not call.positions)):
                    if (blocks := blocks_of_rows(padding.rows, call)) is not None:
                        return blocks, 0
                    others = others or length
                    continue
                rows = self._of_batch(padding.rows, batch)
                asks = rows[:, length - queries :]
                answers = nn.functional.pad(rows, (0, max(keys - length, 0)), value=True)
                if not call.positions or call.hides(asks, answers):
                    return asks, 0
        return None, others

    def _of_batch(self, rows: Tensor, batch: int) -> Tensor:
        if len(rows) == 1 or batch == len(rows):
            return rows.expand(batch, -1)
        if batch % len(rows):
            raise InputError(
                f"attention over {batch} samples at a time in a batch of {len(rows)} that holds padding: "
                "which rows are padding cannot be told; pass samples of one length, or one at a time."
            )
        return rows.repeat_interleave(batch // len(rows), 0)


def _batch(shape: tuple[int, ...], queries: int, keys: int) -> int:
    """The batch among (batch, tokens, ...), (tokens, batch, width) or (tokens, width)."""
    if len(shape) == 2 and shape[0] in (queries, keys):
        return 1
    if len(shape) == 3 and shape[1] not in (queries, keys) and shape[0] in (queries, keys):
        return shape[1]
    return shape[0]


class PassWatcher(Protocol):
    """What is told of a model's passes."""

    def _pass_started(self, module: nn.Module) -> None: ...

    def _pass_ended(self, whole: bool = True) -> None: ...

    def _mark(self) -> tuple[int, ...]: ...

    def _module_raised(self, mark: tuple[int, ...]) -> None: ...

    def _fail(self, error: Exception) -> None: ...


class Owners:
    """Keeps the stack of a model's running modules by global forward hooks, and leaves it as found.

    Global hooks rather than the modules' own: ``nn.TransformerEncoderLayer`` leaves its fast path
    (and so changes its outputs' last bits) when a module in it has a hook. Modules whose forward takes
    a padding mask get a pre-hook of their own, which alone is shown keyword arguments; not inside such
    layers, whose fused operation is handed the mask anyway.
    """

    def __init__(
        self,
        model: nn.Module,
        watch: PassWatcher,
        lineage: Lineage,
    ) -> None:
        self.names = {
            id(module): name.replace("_orig_mod.", "").removesuffix("_orig_mod")
            for name, module in model.named_modules()
        }
        self.model = model
        self.watch = watch
        self.lineage = lineage
        self.running: list[_RunningModule] = []
        self.streams: list[_Stream] = []
        self.hints: list[Tensor] = []
        self.entered: dict[str, nn.Module] = {}
        self._handles: list[RemovableHandle] = []
        self._uncopied = ExitStack()
        self._thread = 0

    def attach(self) -> None:
        """Begin to follow."""
        self._thread = threading.get_ident()
        no_remark_on_hooks()
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        sealed = {
            id(inner)
            for module in self.model.modules()
            if isinstance(module, nn.TransformerEncoderLayer)
            for inner in module.modules()
        }
        if id(self.model) not in sealed:
            register = partial(nn.Module.register_forward_pre_hook, hook=self._take_hints, with_kwargs=True)
            self._uncopied.enter_context(leave_out_of_copies(self.model, register))
        for module in self.model.modules():
            if id(module) not in sealed and (places := mask_places(module)):
                hook = partial(self._take_padding, places)
                register = partial(nn.Module.register_forward_pre_hook, hook=hook, with_kwargs=True)
                self._uncopied.enter_context(leave_out_of_copies(module, register))

    def detach(self) -> None:
        """Take every hook out again."""
        for handle in self._handles:
            handle.remove()
        self._uncopied.close()
        self._handles = []
        self.running, self.hints = [], []

    @property
    def elsewhere(self) -> bool:
        """Whether another thread than the calling one is watched."""
        return bool(self._handles) and threading.get_ident() != self._thread

    @property
    def here(self) -> bool:
        """Whether this is the watched thread, and not a forward pass repeated by a checkpoint's backward."""
        return threading.get_ident() == self._thread and not in_backward()

    def _enter(self, module: nn.Module, args: tuple[Argument, ...]) -> None:
        name = self.names.get(id(module))
        if name is None or not self.here:
            return
        shapes: set[tuple[int, ...]] = set()
        try:
            if not self.running:
                self.streams = []
                self.watch._pass_started(module)
            shapes = shapes_of(args)
        except Exception as error:  # the model's own pass goes on
            self.watch._fail(error)
        for running in self.running[-1:]:
            running.shapes |= shapes
        entered = _RunningModule(name, module, sys.exception(), self.watch._mark(), shapes=shapes)
        self.running.append(entered)
        self.entered[name] = module

    def _leave(self, module: nn.Module, args: tuple[Argument, ...], output: Argument) -> None:
        if id(module) not in self.names or not self.here:
            return
        whole = True
        try:
            # A module that raised may have left its inner ones on the stack.
            while self.running:
                left = self.running.pop()
                if left.module is module:
                    whole = sys.exception() is left.handled
                    if not whole:
                        self.watch._module_raised(left.mark)
                    break
            if not self.running:
                self.watch._pass_ended(whole)
        except Exception as error:
            self.watch._fail(error)

    def _take_padding(
        self,
        places: Iterable[str],
        module: nn.Module,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
    ) -> None:
        """Note the padding masks that a module is given under these names, by name or position."""
        if not self.here or not self.running or self.running[-1].module is not module:
            return
        running = self.running[-1]
        given = {**dict(zip(parameters_of(type(module)), args, strict=False)), **kwargs}
        try:
            running.shapes |= shapes_of(given.values())
            for name in places:
                mask = given.get(name)
                if not isinstance(mask, Tensor) or mask.ndim != 2:
                    continue
                rows = tokens_kept(mask.detach(), name in KEPT_ROWS)
                tokens = tokens_of(name, given)
                if tokens is not None and not bool(rows.all()):
                    sources = self.lineage.of(tokens).sources
                    running.paddings.append(_Padding(rows, sources, length_of(tokens, rows)))
        except Exception as error:
            self.watch._fail(error)

    def _take_hints(self, module: nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        if self.here:
            self.hints = list(tensors_of_tokens((args, kwargs)))

    def place(self) -> Place:
        """The innermost running module that is more than a softmax or a dropout, and those around it."""
        running = tuple(one for one in self.running if not isinstance(one.module, nn.Softmax | nn.Dropout))
        if not running:
            return Place(OUTSIDE, None)
        return Place(running[-1].name, running[-1].module, running, self.streams, self.hints)

    def name_of(self, module: nn.Module) -> str | None:
        """A module's name in the model; None for a stranger."""
        return self.names.get(id(module))

    def silent(self, measured: set[str]) -> list[str]:
        """Modules that ran, look like attention by their class, and hold or sit in no measured module."""
        looking = [n for n, m in self.entered.items() if n and LOOKS_LIKE_ATTENTION.search(type(m).__name__)]

        def are_related(one: str, other: str) -> bool:
            return one == other or one.startswith(other + ".") or other.startswith(one + ".")

        unmeasured = [n for n in looking if not any(are_related(n, seen) for seen in measured if seen)]
        return [n for n in unmeasured if not any(o != n and o.startswith(n + ".") for o in unmeasured)]


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)

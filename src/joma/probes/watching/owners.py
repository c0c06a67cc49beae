"""Whose operation is it, and which of its rows are padding: the stack of modules that are running."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from joma.errors import InputError

OUTSIDE = "(outside)"
"""The owner of what is computed in no module of the watched model."""

_KEPT_ROWS = ("attention_mask", "decoder_attention_mask")
_PADDED_ROWS = ("src_key_padding_mask", "tgt_key_padding_mask", "key_padding_mask")
_HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
_LOOKS_LIKE_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


@dataclass
class _Running:
    name: str
    module: nn.Module
    rows: Tensor | None = None
    """(batch, length) bool, True for tokens that are not padding."""
    decoder_rows: Tensor | None = None


class Owners:
    """Keeps the stack of a model's running modules by global forward hooks, and leaves it as found.

    Global hooks rather than the modules' own: ``nn.TransformerEncoderLayer`` leaves its fast path
    (and so changes its outputs' last bits) when a module in it has a hook. Modules whose forward takes
    a padding mask get a pre-hook of their own, which alone is shown keyword arguments; not inside such
    layers, whose fused operation is handed the mask anyway.
    """

    def __init__(self, model: nn.Module, started: Callable[[], None]) -> None:
        self.names = {
            id(module): name.replace("_orig_mod.", "").removesuffix("_orig_mod")
            for name, module in model.named_modules()
        }
        self.model = model
        self.started = started
        self.running: list[_Running] = []
        self.entered: dict[str, nn.Module] = {}
        self._handles: list[Any] = []
        self._thread = 0

    def attach(self) -> None:
        """Begin to follow."""
        self._thread = threading.get_ident()
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
        for module in self.model.modules():
            if id(module) not in sealed and (places := _mask_places(module)):
                hook = _padding_hook(self, places)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def detach(self) -> None:
        """Take every hook out again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.running = []

    @property
    def here(self) -> bool:
        """Whether this is the watched thread, and not a forward pass repeated by a checkpoint's backward."""
        return threading.get_ident() == self._thread and not in_backward()

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self.names.get(id(module))
        if name is None or not self.here:
            return
        if not self.running:
            self.started()
        self.running.append(_Running(name, module))
        self.entered[name] = module

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in self.names or not self.here:
            return
        # A module that raised may have left its inner ones on the stack.
        while self.running:
            if self.running.pop().module is module:
                return

    def owner(self) -> tuple[str, nn.Module | None]:
        """The innermost running module that is more than a softmax or a dropout."""
        for running in reversed(self.running):
            if not isinstance(running.module, nn.Softmax | nn.Dropout):
                return running.name, running.module
        return OUTSIDE, None

    def named(self, module: nn.Module) -> str | None:
        """A module's name in the model; None for a stranger."""
        return self.names.get(id(module))

    def heads(self) -> int | None:
        """The head count that the running modules or their configurations state, innermost first."""
        for running in reversed(self.running):
            for source in (running.module, getattr(running.module, "config", None)):
                for name in _HEAD_COUNTS:
                    count = getattr(source, name, None)
                    if isinstance(count, int) and not isinstance(count, bool):
                        return count
        return None

    def valid_rows(self, name: str, batch: int, queries: int, keys: int) -> tuple[Tensor | None, bool]:
        """Which query rows are no padding, (batch, queries), and whether a mask was there that fits not.

        The innermost padding mask that was passed to a running module counts. In an encoder-decoder
        its ``decoder_attention_mask`` is that of the modules with ``decoder`` in their name. With a
        cache the queries are the last of the mask's tokens.
        """
        misfit = False
        for running in reversed(self.running):
            inside = name[len(running.name) :] if name.startswith(running.name) else name
            both = "decoder_attention_mask" in _parameters(type(running.module))
            rows = running.decoder_rows if both and "decoder" in inside else running.rows
            if both and rows is None and "decoder" in inside:
                return None, misfit
            if rows is None:
                continue
            if rows.shape[0] == batch:
                length = rows.shape[1]
                if length == queries or queries < length <= keys:
                    return rows[:, length - queries :], misfit
            misfit = True
        return None, misfit

    def silent(self, measured: set[str]) -> list[str]:
        """Modules that ran, look like attention by their class, and hold or sit in no measured module."""
        looking = [n for n, m in self.entered.items() if n and _LOOKS_LIKE_ATTENTION.search(type(m).__name__)]

        def related(one: str, other: str) -> bool:
            return one == other or one.startswith(other + ".") or other.startswith(one + ".")

        unmeasured = [n for n in looking if not any(related(n, seen) for seen in measured if seen)]
        return [n for n in unmeasured if not any(o != n and o.startswith(n + ".") for o in unmeasured)]


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def layer_number(name: str) -> int | None:
    """The first number in a module's name: 7 for ``model.layers.7.self_attn``."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None


class Selection:
    """Layers by number or by pattern of module names."""

    def __init__(self, layers: Iterable[int | str]) -> None:
        wanted = [layers] if isinstance(layers, int | str) else list(layers)
        for one in wanted:
            if isinstance(one, bool) or not isinstance(one, int | str | np.integer):
                raise InputError(f"layers = {wanted!r} in watch holds {one!r}; give numbers or module names.")
        if not wanted:
            raise InputError("layers = [] in watch chooses no layer; give numbers or names, or None for all.")
        self.numbers = {int(one) for one in wanted if not isinstance(one, str)}
        self.patterns = [one for one in wanted if isinstance(one, str)]
        self.text = repr(wanted)

    def __call__(self, name: str) -> bool:
        """Whether a module of this name is among them."""
        return layer_number(name) in self.numbers or any(fnmatchcase(name, p) for p in self.patterns)


_signatures: dict[type, tuple[str, ...]] = {}


def _parameters(kind: type) -> tuple[str, ...]:
    if kind not in _signatures:
        try:
            _signatures[kind] = tuple(inspect.signature(kind.forward).parameters)[1:]  # type: ignore[attr-defined]
        except (TypeError, ValueError, AttributeError):
            _signatures[kind] = ()
    return _signatures[kind]


def _mask_places(module: nn.Module) -> dict[str, int]:
    parameters = _parameters(type(module))
    return {name: parameters.index(name) for name in (*_KEPT_ROWS, *_PADDED_ROWS) if name in parameters}


def _padding_hook(owners: Owners, places: dict[str, int]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not owners.here or not owners.running or owners.running[-1].module is not module:
            return
        running = owners.running[-1]
        for name, place in places.items():
            mask = kwargs.get(name, args[place] if place < len(args) else None)
            if not isinstance(mask, Tensor) or mask.ndim != 2:
                continue
            if name in _KEPT_ROWS:
                rows = mask.detach() > 0
            elif mask.dtype == torch.bool:
                rows = ~mask.detach()
            else:
                rows = mask.detach() == 0
            if name == "decoder_attention_mask":
                running.decoder_rows = rows
            elif running.rows is None:
                running.rows = rows

    return hook

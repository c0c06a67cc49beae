"""Hooks on a module that its copies do not take along."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

Hooks = OrderedDict[int, Any]
_DICTIONARIES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Where a module of PyTorch keeps its forward hooks and what it knows of each, by the hook's number."""


@contextmanager
def leave_out_of_copies(module: nn.Module, register: Callable[[nn.Module], Any]) -> Iterator[None]:
    """A hook of a module for as long as the block lasts, which a copy or a pickle of the model lacks.

    The dictionaries of hooks get a way of their own to be copied and pickled (an attribute of the instance,
    which both ask for), that leaves the hook out.

    Args:
        module: the module that is hooked.
        register: registers the hook, and returns its handle.
    """
    handle = register(module)
    dictionaries: list[Hooks] = [getattr(module, name) for name in _DICTIONARIES if hasattr(module, name)]
    own = [hooks for hooks in dictionaries if handle.id in hooks]
    for hooks in own:
        left_out: frozenset[int] = getattr(hooks, "_joma", frozenset())
        _leave_out(hooks, left_out | {handle.id})
    try:
        yield
    finally:
        handle.remove()
        for hooks in own:
            _leave_out(hooks, getattr(hooks, "_joma", frozenset()) - {handle.id})


def _leave_out(hooks: Hooks, numbers: frozenset[int]) -> None:
    attributes = vars(hooks)
    if numbers:
        attributes |= {"_joma": numbers, "__reduce_ex__": partial(_reduce_hooks, hooks)}
    else:
        attributes.pop("_joma", None)
        attributes.pop("__reduce_ex__", None)


def _reduce_hooks(hooks: Hooks, _protocol: int) -> tuple[type[Hooks], tuple[list[tuple[int, Any]]]]:
    left_out: frozenset[int] = vars(hooks)["_joma"]
    return OrderedDict, ([(number, hook) for number, hook in hooks.items() if number not in left_out],)

"""What transformers hands to its attention functions: soft cap, sinks, position bias, grouped keys.

Models of transformers ask ``AttentionInterface.get_interface`` for an attention function at every
forward pass. While something watches, that method returns the same function inside a wrapper that
shows the arguments to the watchers. No configuration is changed and nothing is registered
(registering an implementation of one's own loses padding and sliding windows in silence).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from joma.core.errors import InputError
from joma.instruments.watch.call import AttentionCall, scaled_dot_product_call, split_mask, with_value


class RegistryObserver(Protocol):
    """What a watcher offers to the registry."""

    def around(
        self, call: Callable[[], AttentionCall | None], module: nn.Module, told: tuple[Tensor, Tensor]
    ) -> AbstractContextManager[None]:
        """Entered before the attention function runs and left after it; ``told``: its query and key."""


_observers: list[RegistryObserver] = []
_original: Any = None


def add_observer(observer: RegistryObserver) -> None:
    """Show this observer every call, from now on; does nothing where transformers is not loaded."""
    global _original
    _observers.append(observer)
    modeling = sys.modules.get("transformers.modeling_utils")
    if _original is None and modeling is not None and hasattr(modeling, "AttentionInterface"):
        _original = modeling.AttentionInterface.get_interface
        modeling.AttentionInterface.get_interface = _get_interface


def remove_observer(observer: RegistryObserver) -> None:
    """Show it no more; the last one to leave restores the registry."""
    global _original
    _observers.remove(observer)
    if not _observers and _original is not None:
        sys.modules["transformers.modeling_utils"].AttentionInterface.get_interface = _original
        _original = None


def _get_interface(self: Any, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
    function = _original(self, implementation, default)
    kind = "eager" if function is default else str(implementation)

    @functools.wraps(function)
    def observe(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        def call() -> AttentionCall | None:
            made = registry_call(kind, module, query, key, *args, **kwargs)
            return None if made is None else with_value(made, value)

        with ExitStack() as around:
            for observer in list(_observers):
                around.enter_context(observer.around(call, module, (query, key)))
            return function(module, query, key, value, *args, **kwargs)

    return observe


def registry_call(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Any = None,
    *_: Any,
    **kwargs: Any,
) -> AttentionCall | None:
    """The call that an attention function of transformers makes of its arguments.

    None where the dispatch mode sees more than these arguments tell: an eager function computes its
    own scores (a soft cap, a bias, a scale of the layer's own), and their softmax is what it is. With
    sinks that softmax has a column that is no key, so there the arguments are used.

    Raises:
        InputError: if the arguments ask for what is not measured (packed sequences in flash attention).
    """
    sinks = kwargs.get("s_aux")
    further: dict[str, Any] = {"sinks": None if sinks is None else sinks.detach()}
    scale = kwargs.get("scaling")
    causal = kwargs.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    position_bias = kwargs.get("position_bias")
    operation = implementation
    if implementation == "eager":
        if sinks is None:
            return None
        mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
        return scaled_dot_product_call("registry", operation, query, key, mask=mask, scale=scale, **further)
    if implementation == "sdpa":
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        mask = attention_mask
    elif implementation == "flex_attention":
        causal = False
        mask = _dense(attention_mask, query, key)
        further["softcap"] = kwargs.get("softcap")
    elif implementation.startswith("flash_attention"):
        if any(kwargs.get(name) is not None for name in ("cu_seq_lens_q", "cu_seq_lens_k")):
            raise InputError("flash attention on packed sequences is not measured; use attention 'sdpa'.")
        mask = _bottom_right(query, key, kwargs.get("sliding_window")) if causal else None
        if attention_mask is not None:
            columns = attention_mask[:, None, None, -key.shape[2] :].bool()
            mask = columns if mask is None else columns & mask
        causal = False
        further["softcap"] = kwargs.get("softcap")
    else:
        return None
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]].detach()
        keep, bias = split_mask(mask)
        whole = position_bias if bias is None else position_bias + bias
        call = scaled_dot_product_call(
            "registry", operation, query, key, mask=keep, causal=causal, scale=scale, **further
        )
        return replace(call, bias=whole[..., : call.shape[3]])
    return scaled_dot_product_call(
        "registry", operation, query, key, mask=mask, causal=causal, scale=scale, **further
    )


def _bottom_right(query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Flash attention's causal mask: the last query sees the last key; (queries, keys), True = keep."""
    queries, keys = query.shape[2], key.shape[2]
    row = torch.arange(keys - queries, keys, device=query.device)[:, None]
    column = torch.arange(keys, device=query.device)
    keep = column <= row
    return keep if window is None else keep & (column > row - window)


def _dense(mask: Any, query: Tensor, key: Tensor) -> Tensor | None:
    """A flex_attention block mask as a bool mask; tensors (added to the scores) as they are."""
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        return mask[..., : key.shape[2]]
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = mask.shape[0], mask.shape[1]
    dense: Tensor = create_mask(
        mask.mask_mod, batch, heads, query.shape[2], key.shape[2], device=str(query.device)
    )
    return dense

"""The matrix of a layer that does more than multiply by its weight: what it does to the identity.

Adapters add, rotate, reflect or scale; whichever it is, a layer that is linear up to its bias is the matrix
that it makes of the unit vectors. That it is linear is tried on a few vectors first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

_TRIED = 3
_TOLERANCE = 64
"""Of the type's epsilon, times the size of what is compared."""


def has_own_way(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a linear layer of plain numbers has a forward of its own that is not ``x W^T + b``."""
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
        return False
    weight: object = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or type(weight) not in (nn.Parameter, Tensor):
        return False
    plain = weight.dtype.is_floating_point and weight.dtype.itemsize > 1
    if not plain or weight.is_meta or weight.ndim != 2 or not weight.numel():
        return False
    with _still(module):
        x = _vectors(weight.shape[1], weight)
        try:
            made = module.forward(x)  # past the hooks that others have set
        except Exception:  # it takes other things than vectors: what it does is its own
            return True
        told = functional.linear(x, weight, module.bias)
        return not (isinstance(made, Tensor) and made.shape == told.shape and _alike(made, told))


def pushed_through(module: nn.Module, base: nn.Module, stored: Tensor) -> Callable[[], Tensor] | None:
    """How to read the matrix that a layer is, as its base stores its own; None where it is not linear.

    Args:
        module: the layer, called with vectors (or, around an embedding, with numbers of tokens).
        base: the layer that it changes, whose weight tells the sizes.
        stored: that weight, (outputs, inputs), or (inputs, outputs) as ``Conv1D`` and embeddings store it.
    """
    if stored.is_meta or stored.ndim != 2:
        return None
    embeds = isinstance(base, nn.Embedding)
    flipped = not embeds and getattr(base, "in_features", None) == stored.shape[1]
    inputs, outputs = stored.shape[::-1] if flipped else stored.shape
    try:
        with _still(module):
            if embeds:
                fits = module(torch.zeros(1, dtype=torch.long, device=stored.device)).shape[-1] == outputs
            else:
                fits = _is_linear(module, _vectors(inputs, stored), outputs)
    except Exception:  # it takes other things than vectors
        return None
    return partial(_read, module, inputs, stored, embeds, flipped) if fits else None


def _read(module: nn.Module, inputs: int, stored: Tensor, embeds: bool, flipped: bool) -> Tensor:
    with _still(module):
        if embeds:
            rows: Tensor = module(torch.arange(inputs, device=stored.device))
            return rows
        units = torch.eye(inputs, dtype=_dtype(stored), device=stored.device)
        made: Tensor = module(units) - module(torch.zeros_like(units[:1]))
        return made.T if flipped else made


def _is_linear(module: nn.Module, x: Tensor, outputs: int) -> bool:
    """Whether f(x + y) - f(0) = (f(x) - f(0)) + (f(y) - f(0))."""
    bias = module(torch.zeros_like(x[:1]))
    one, two, both = (module(v) - bias for v in (x, x.flip(0), x + x.flip(0)))
    return both.shape == (*x.shape[:-1], outputs) and _alike(both, one + two)


def _alike(one: Tensor, other: Tensor) -> bool:
    size = max(float(one.abs().max()), float(other.abs().max()))
    return bool((one - other).abs().max() <= _TOLERANCE * torch.finfo(one.dtype).eps * max(size, 1e-30))


def _vectors(inputs: int, like: Tensor) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn(_TRIED, inputs, generator=random).to(like.device, _dtype(like))


def _dtype(like: Tensor) -> torch.dtype:
    return like.dtype if like.dtype.is_floating_point and like.dtype.itemsize > 1 else torch.float32


@contextmanager
def _still(module: nn.Module) -> Iterator[None]:
    """The layer as it is used, without dropout and without a gradient; then as it was."""
    training = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for part, flag in training:
            part.training = flag

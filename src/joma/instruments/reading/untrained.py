"""A network as it was before any training: the null of every judgement that speaks of learning."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from joma.core.errors import InputError, first_line
from joma.instruments.reading.passes import device_of, unwrap

NULLS = ("untrained", "none")

_DRAWS = ("reset_parameters", "_reset_parameters")
"""What a module of PyTorch calls the method that draws its weights."""


def untrained_copies(
    model: nn.Module, null: str | Sequence[nn.Module], *, count: int, seed: int = 0
) -> Iterator[nn.Module]:
    """Untrained networks of a model's shape, one at a time.

    Args:
        model: the trained one, which is left as it is.
        null: ``untrained``: drawn here (``untrained_copy``); ``none``: no copies; or the networks
            themselves, such as the model's own starts.
        count: copies that are drawn.
        seed: of the first; the others have those that follow.

    Raises:
        InputError: a model whose weights cannot be drawn anew.
    """
    if not isinstance(null, str):
        yield from null
    elif null == "untrained":
        for number in range(count):
            yield untrained_copy(model, seed=seed + number)


def check_null(null: str | Sequence[nn.Module]) -> None:
    """Raises InputError for a word that is none of ``NULLS``."""
    if isinstance(null, str) and null not in NULLS:
        raise InputError(f"null = {null!r} is unknown; give 'untrained', 'none', or the untrained networks.")


def untrained_copy(model: nn.Module, *, seed: int) -> nn.Module:
    """A network of the same shape whose weights are drawn as before a training, in evaluation mode.

    A model of transformers is built from its config; any other is copied, and each of its modules draws its
    weights anew (``reset_parameters``). Its device and dtype are the model's. The global random state is
    left as it is.

    Raises:
        InputError: a model with weights that no module draws, or one that cannot be copied.
    """
    inner = unwrap(model)
    device = device_of(model)
    dtype = next((p.dtype for p in inner.parameters() if p.is_floating_point()), torch.float32)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        try:
            fresh = type(inner)(inner.config) if hasattr(inner, "config") else _drawn_anew(inner)
        except InputError:
            raise
        except Exception as error:  # of a class of anybody's, all of one meaning here
            raise InputError(
                f"no untrained {type(inner).__name__} can be built ({type(error).__name__}: "
                f"{first_line(error)}); give networks of its shape before training: null=[...]."
            ) from error
    return fresh.to(device=device, dtype=dtype).eval()


def _drawn_anew(model: nn.Module) -> nn.Module:
    fresh = copy.deepcopy(model)
    drawn: set[int] = set()
    for module in fresh.modules():
        draw = next((getattr(module, name) for name in _DRAWS if hasattr(module, name)), None)
        if draw is not None:
            draw()
            drawn |= {id(parameter) for parameter in module.parameters(recurse=False)}
    left = [name for name, parameter in fresh.named_parameters() if id(parameter) not in drawn]
    if left:
        raise InputError(
            f"no untrained {type(model).__name__} can be made: no module draws {left[0]} anew "
            "(reset_parameters); give networks of its shape before training: null=[...]."
        )
    return fresh

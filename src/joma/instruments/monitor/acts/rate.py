"""Lower learning rates, whatever schedule sets them: of everything, or of W_Q and W_K alone."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from joma.core.errors import InputError
from joma.instruments.monitor.measuring.products import QueryKey

LOWERED = 0.1
"""What rates are multiplied by, each time."""


class LowerRate:
    """From an alarm on, what the schedule sets is multiplied around each optimizer step.

    A group's rate is as the schedule left it as soon as the step is over, so that a schedule which multiplies
    the rate it finds goes on as before.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.factor = 1.0
        self._rates: list[Any] = []
        own = weakref.proxy(self)
        self._hooks = [
            optimizer.register_step_pre_hook(lambda one, *_: own.before(one)),
            optimizer.register_step_post_hook(lambda one, *_: own.after(one)),
        ]

    def lower(self) -> None:
        """Once more."""
        self.factor *= LOWERED

    def before(self, optimizer: Optimizer) -> None:
        """The step begins."""
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.factor

    def after(self, optimizer: Optimizer) -> None:
        """The step is over."""
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate

    def close(self) -> None:
        """Leave the optimizer as it was."""
        for hook in self._hooks:
            hook.remove()


class LowerQueryKeyRate:
    """The same of W_Q and W_K alone, wherever they stand: only a share of each of their steps is kept."""

    def __init__(self, optimizer: Optimizer, products: Sequence[QueryKey]) -> None:
        self.factor = 1.0
        self._products = list(products)
        self._before: list[Tensor] = []
        own = weakref.proxy(self)
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: own.before()),
            optimizer.register_step_post_hook(lambda *_: own.after()),
        ]

    def _views(self) -> list[Tensor]:
        return [
            view
            for one in self._products
            for rows, heads in ((one.query, one.place.heads), (one.key, one.key_heads))
            for view in (rows.heads(heads), rows.bias(heads))
            if view is not None
        ]

    def lower(self) -> None:
        """Once more."""
        self.factor *= LOWERED

    def before(self) -> None:
        """The step begins."""
        self._before = [view.clone() for view in self._views()]

    def after(self) -> None:
        """The step is over."""
        with torch.no_grad():
            for view, before in zip(self._views(), self._before, strict=True):
                view.copy_(torch.lerp(before, view, self.factor))

    def close(self) -> None:
        """Leave the optimizer as it was."""
        for hook in self._hooks:
            hook.remove()


def check_optimizer(model: nn.Module, optimizer: Any) -> Optimizer:
    """An optimizer of some of this model's weights.

    Raises:
        InputError: it is none, or another model's.
    """
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"optimizer = {type(optimizer).__name__} in Monitor; give a torch.optim.Optimizer, or none."
        )
    own = {id(weight) for weight in model.parameters()}
    if not any(id(weight) in own for group in optimizer.param_groups for weight in group["params"]):
        raise InputError(
            f"the optimizer given to Monitor moves no weight of this {type(model).__name__}; give the one "
            "that trains it."
        )
    return optimizer

"""What the backward passes of a look began with, and the gradients' norm that they left."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from joma.instruments.watch.owners import in_backward

_EXACT, _FEWEST = 1e-3, 4
"""A loss scale is a power of two, to this relative error, and at least this one (of either sign)."""
_FAR = 8
"""Powers of two between two losses from which on they are not one, whatever their ratio."""
_NEAR = 1e-3
"""Relative difference of two norms that are the same."""

_open: list[Backwards] = []
_original: Callable[..., None] | None = None


class Backwards:
    """Follows ``torch.autograd.backward``, which ``Tensor.backward`` calls, while it is open.

    Args:
        norm: of the gradients that are there.
        ended: told that a backward pass is over, and whether it was whole (False: it raised).
        failed: told what went wrong; the training goes on.
    """

    def __init__(
        self,
        norm: Callable[[], Tensor | None],
        ended: Callable[[bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.roots: list[Tensor] = []
        """The scalars that were differentiated."""
        self.norm: Tensor | None = None
        """Of the gradients right after the last backward pass."""
        self._norm, self._ended, self._failed = norm, ended, failed

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Follow what runs in the block."""
        global _original
        _open.append(self)
        if _original is None:
            _original = torch.autograd.backward
            torch.autograd.backward = functools.wraps(_original)(_backward)
        try:
            yield
        finally:
            _open.remove(self)
            if not _open and _original is not None:
                torch.autograd.backward, _original = _original, None

    def ran(self, tensors: Any) -> None:
        """A backward pass of these tensors is over."""
        try:
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self.roots += [root.detach().clone() for root in roots if root.numel() == 1]
            self.norm = self._norm()
            self._ended(True)
        except Exception as error:  # nothing in a monitor may end a training run
            self._failed(error)

    def note_error(self) -> None:
        """A backward pass raised."""
        try:
            self._ended(False)
        except Exception as error:
            self._failed(error)

    def factor(self, loss: float | None) -> float:
        """By how much the loss was scaled before it was differentiated (loss scaling); 1 where it was not."""
        scalars = [float(root) for root in self.roots]
        if not scalars or loss is None or not math.isfinite(loss) or loss == 0:
            return 1.0
        candidates = (scalars[-1], sum(scalars) / len(scalars), sum(scalars))
        ratios = [value / loss for value in candidates if math.isfinite(value) and value / loss > 0]
        for ratio in ratios:
            power = round(math.log2(ratio))
            if abs(power) >= _FEWEST and abs(ratio / 2.0**power - 1) < _EXACT:
                return 2.0**power
        return next((ratio for ratio in ratios[:1] if abs(math.log2(ratio)) > _FAR), 1.0)

    def objection(self, measured: Tensor | float | None, loss: float | None) -> tuple[float | None, str]:
        """The norm of the loss's gradients, and why the one that was measured at the step is another one.

        Args:
            measured: at the step; None where no gradient was there.
            loss: what the step was told.
        """
        if self.norm is None:
            return None, ""
        factor, after = self.factor(loss), float(self.norm)
        true = after / factor
        if not math.isfinite(true) or true == 0:
            return None, ""
        found = None if measured is None else float(measured)
        if found is not None and abs(found - true) <= _NEAR * true:
            return true, ""
        if not found:
            return true, (
                f"it is zero at step() ({true:.3g} after the backward pass): call step() before "
                f"zero_grad(), or "
                "give grad_norm="
            )
        if factor != 1 and abs(found - after) <= _NEAR * after:
            return true, (
                f"it is scaled: the backward pass began with {factor:,.6g} times the loss that step() "
                f"was told "
                "(a GradScaler); give scaler=, or grad_norm="
            )
        return true, (
            f"it is {found:.3g} at step(), and was {true:.3g} after the backward pass: the gradients were "
            "clipped or changed in between; give grad_norm= as it was before"
        )


def _backward(tensors: Any, *args: Any, **named: Any) -> None:
    assert _original is not None
    nested = in_backward()  # a checkpoint's, within the real one
    try:
        _original(tensors, *args, **named)
    except BaseException:
        for one in [] if nested else list(_open):
            one.note_error()
        raise
    for one in [] if nested else list(_open):
        one.ran(tensors)
